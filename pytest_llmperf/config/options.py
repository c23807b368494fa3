"""The options: one table, registered as command-line options and ini keys. Light to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import pytest

from pytest_llmperf.model.choices import CapacityMode, Endpoint, PromptMode, UpdateMode
from pytest_llmperf.model.errors import ConfigError

Kind = Literal["text", "number", "flag", "list"]
"""``list`` options may be given more than once; their values are split at commas on demand."""


class Option(NamedTuple):
    """One ``--llm-<stem>`` option, with the ini key ``llm_<stem>`` unless ``ini`` is False."""

    stem: str
    kind: Kind
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    ini: bool = True
    flag: str = ""
    """The command-line name where it is not ``--llm-<stem>``."""

    @property
    def cli(self) -> str:
        return self.flag or f"--llm-{self.stem}"

    @property
    def key(self) -> str:
        return "llm_" + self.stem.replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option("url", "text", "server to measure: http://host:port, or sim, sim:PROFILE?speed=0.9 for "
           "the built-in simulator", "URL"),
    Option("serve", "text", "command that starts the server; it is stopped after the run. {port} "
           "stands for a free port, {run} for the number of the run, {start} for that of the start "
           "within it", "COMMAND"),
    Option("runs", "number", "measure the matrix N times, with a server start each (--llm-serve, "
           "or sim); with --update-baselines each run is added", "N"),
    Option("restarts", "number", "start the server anew up to N times a run to confirm what looks "
           "worse (--llm-serve, or sim; default: 2); 0: confirm within the same start", "N"),
    Option("against", "text", "compare with this server instead of a baseline: every cell is "
           "measured at both in turn", "URL"),
    Option("serve-against", "text", "as --llm-against, with a command that starts the server",
           "COMMAND"),
    Option("hardware", "text", "hardware profile to compare with, a file in the baselines "
           "directory (--hardware for short)", "PROFILE"),
    Option("baselines-dir", "text", "directory of the profiles (default: baselines)", "DIR"),
    Option("model", "text", "model id to request, when the server serves several", "ID"),
    Option("engine", "text", "kind of server, instead of detecting it", "NAME"),
    Option("api-key", "text", "API key; better in the environment as LLMPERF_API_KEY", "KEY",
           ini=False),
    Option("api-key-file", "text", "file that holds the API key", "FILE"),
    Option("header", "list", "extra request header, repeatable", "NAME:VALUE"),
    Option("ca", "text", "CA file to verify the server with", "FILE"),
    Option("insecure", "flag", "do not verify the server's TLS certificate"),
    Option("metrics-url", "text", "where the metrics are, if not at URL/metrics", "URL"),
    Option("wait", "number", "wait up to SECONDS for a server that refuses connections", "SECONDS"),
    Option("run-info", "list", "what the server does not tell: a YAML file, or key=value; "
           "repeatable", "FILE|KEY=VALUE"),
    Option("telemetry", "text", "read the server's GPUs by NVML when they are on this host and the "
           "extra gpu is installed: auto (default) or off", choices=("auto", "off")),
    Option("contexts", "list", "context lengths of the decode cells: 8K,16K,128K", "LIST"),
    Option("prefill-contexts", "list", "context lengths of the prefill cells (default: "
           "as --llm-contexts)", "LIST"),
    Option("concurrency", "list", "simultaneous requests: 1,2,4", "LIST"),
    Option("duration", "number", "seconds measured per decode cell (default: 30)", "SECONDS"),
    Option("settle", "number", "seconds of steady load before the window opens (default: 2)",
           "SECONDS"),
    Option("stall", "number", "a stream silent for this long has failed (default: 30)", "SECONDS"),
    Option("max-tokens", "text", "output tokens per request (default: 4096)", "N"),
    Option("endpoint", "text", "chat (default) or completions", choices=get_args(Endpoint)),
    Option("prompts", "text", "shared: all streams of a cell send one prompt (default); "
           "distinct: each its own", choices=get_args(PromptMode)),
    Option("temperature", "number", "sampling temperature (default: 1.0)", "T"),
    Option("top-p", "number", "nucleus sampling (default: 1.0)", "P"),
    Option("extra-body", "text", "JSON object merged into each request", "JSON"),
    Option("capacity", "text", "what counts against the KV cache: reserved (default), shared "
           "prompts once, or try", choices=get_args(CapacityMode)),
    Option("kv-tokens", "text", "KV cache of the server in tokens, if it does not say", "N"),
    Option("workers", "text", "load-generating processes: a number, or auto (default): this one "
           "until the rate asks for more", "N"),
    Option("load", "list", "generate the load by these processes, on this host or others: execnet "
           "specifications as pytest --tx takes them, ssh=user@host//python=python3 or 4*popen; "
           "repeatable", "[N*]SPEC"),
    Option("tolerance", "list", "override a tolerance, as a fraction: ttft_ms=0.3 or "
           "itl_ms@decode[8K-c1]=0.2; repeatable", "METRIC[@CELL]=FRACTION"),
    Option("limit", "list", "an absolute limit, in the metric's unit: ttft_p99_ms=500 or "
           "total_tok_s@decode[*-c1]=100; repeatable", "METRIC[@PATTERN]=VALUE"),
    Option("gate", "list", "judge this metric too; repeatable", "METRIC"),
    Option("fail-on-improvement", "flag", "a cell better beyond its tolerance fails"),
    Option("allow-mismatch", "flag", "measure although hardware, model, engine or settings differ "
           "from the profile; compares nothing", ini=False),
    Option("allow-new", "flag", "under CI, let cells pass that the profile does not have"),
    Option("update-baselines", "flag", "accept what is measured into the profile", ini=False,
           flag="--update-baselines"),
    Option("update-mode", "text", "which cells an update takes: moved (default: new ones and those "
           "beyond their noise), all, new, better, add (append a run)",
           choices=get_args(UpdateMode)),
    Option("update-reason", "text", "why a regression is accepted; stored with it", "TEXT",
           ini=False),
    Option("prune", "flag", "with --update-baselines: delete cells the grid has no more",
           ini=False),
    Option("dry-run", "flag", "with --update-baselines: show the diff, write nothing", ini=False),
    Option("report", "list", "write a report: html, json or md, with :PATH if wanted; repeatable; "
           "none for no files (default: all three in llmperf-report/)", "FORMAT[:PATH]"),
)  # fmt: skip
BY_STEM = {option.stem: option for option in OPTIONS}

_INI_TYPE: dict[Kind, Any] = {
    "text": "string",
    "number": "float",
    "flag": "bool",
    "list": "linelist",
}


def add_options(parser: pytest.Parser) -> None:
    """Register the table as one option group and as ini keys."""
    group = parser.getgroup("llmperf", "LLM server performance (pytest-llmperf)")
    for option in OPTIONS:
        common: dict[str, Any] = {"dest": option.key, "default": None, "help": option.help}
        if option.kind == "flag":
            group.addoption(option.cli, action="store_true", **common)
        elif option.kind == "list":
            group.addoption(option.cli, action="append", metavar=option.metavar, **common)
        else:
            group.addoption(
                option.cli, metavar=option.metavar, choices=option.choices or None, **common
            )
        if option.ini:
            kind = _INI_TYPE[option.kind]
            parser.addini(option.key, option.help, type=kind, default=None)


def claim_short_name(parser: pytest.Parser, args: list[str]) -> None:
    """Let ``--hardware`` mean ``--llm-hardware``, unless the project has an option of that name.

    Rewriting ``args`` in place, before they are parsed, leaves the name free for others.
    """
    groups = [*parser._groups, parser._anonymous]
    if any("--hardware" in option.names() for group in groups for option in group.options):
        return
    for i, arg in enumerate(args):
        if arg == "--":
            return
        if arg == "--hardware" or arg.startswith("--hardware="):
            args[i] = arg.replace("--hardware", "--llm-hardware", 1)


_NOT_AGAIN = {
    "url", "serve", "against", "serve-against", "hardware", "api-key", "header", "report",
    "update-baselines", "update-mode", "update-reason", "prune", "dry-run",
}  # fmt: skip
"""What a report names by itself, what is secret, and what concerns the writing of files."""


def list_given(config: pytest.Config) -> list[str]:
    """The command line's own options that a cell must be measured with again."""
    words = []
    for option in OPTIONS:
        value = None if option.stem in _NOT_AGAIN else config.getoption(option.key)
        if value is True:
            words.append(option.cli)
        elif value is not None:
            for item in value if isinstance(value, list) else [value]:
                words += [option.cli, f"{item:g}" if isinstance(item, float) else str(item)]
    return words


def bad_value(stem: str, problem: str) -> ConfigError:
    """The error for a value of this option that cannot be used."""
    return ConfigError(f"{BY_STEM[stem].cli}: {problem}")


class Values:
    """Where a value comes from: command line > marker > profile > ini > default."""

    def __init__(
        self,
        config: pytest.Config,
        profile: Mapping[str, Any] | None = None,
        marker: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._profile = profile or {}
        self._marker = marker or {}

    def given(self, stem: str) -> Any:
        """What the command line or a marker says, or None."""
        value = self._config.getoption(BY_STEM[stem].key)
        return value if value is not None else self._marker.get(stem.replace("-", "_"))

    def get(self, stem: str) -> Any:
        """The value that holds, or None where nobody gives one."""
        option = BY_STEM[stem]
        value = self.given(stem)
        if value is None:
            value = self._profile.get(stem.replace("-", "_"))
        if value is None and option.ini:
            try:
                value = self._config.getini(option.key)
            except (pytest.UsageError, TypeError, ValueError) as error:
                hint = "; write it in quotes" if option.kind == "text" else ""
                raise bad_value(stem, f"the ini key {option.key}: {error}{hint}") from None
            if option.kind == "text" and value is not None and not isinstance(value, str):
                raise bad_value(stem, f"the ini key {option.key} takes text")
            if value is not None and option.choices and value not in option.choices:
                raise bad_value(stem, f"{value!r} is none of {', '.join(option.choices)}")
        return value

    def items(self, stem: str) -> list[str]:
        """A list option, split at commas, blanks dropped."""
        value = self.get(stem)
        parts = [value] if isinstance(value, str) else list(value or ())
        return [item for part in parts for item in str(part).replace(",", " ").split()]

    def whole(self, stem: str) -> list[str]:
        """A list option whose values may hold commas."""
        value = self.get(stem)
        return [value] if isinstance(value, str) else [str(item) for item in value or ()]
