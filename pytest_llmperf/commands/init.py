"""What ``llmperf init`` writes into a user's repository. Nothing is ever overwritten."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.config.options import OPTIONS
from pytest_llmperf.model.errors import ConfigError

_CONFIG = "pytest.ini"
_EXAMPLE = "llmperf.ini.example"
"""Written instead where pytest is configured already: a pytest.ini would hide that."""
_CONFIGURED = {
    "pytest.toml": "",
    ".pytest.toml": "",
    "pytest.ini": "",
    ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
"""Where pytest looks for its configuration, and what a file holds that has one."""

_LOOP_SCOPE = "asyncio_default_fixture_loop_scope = function"

_IGNORE_FILE = ".gitignore"
_BASELINES_README = """\
# Baselines

One file per hardware profile. This creates `NAME.yaml`, from five starts of the server, which show
how much it varies by itself:

    pytest perf_tests --hardware NAME --update-baselines --llm-runs 5 \\
        --llm-serve "vllm serve MODEL --port {port}"

A server that is started by other means is measured after each of its starts, and the run added:

    pytest perf_tests --llm-url http://HOST:8000 --hardware NAME --update-baselines \\
        --llm-update-mode add

This compares with it:

    pytest perf_tests --llm-url http://HOST:8000 --hardware NAME

and with `--update-baselines` accepts what changed.

Commit the files; a change of performance is then reviewed as any other change.
"""


@dataclass(frozen=True)
class Written:
    """Files that were made, that got a line more, and that stay as they are."""

    created: tuple[Path, ...]
    changed: tuple[Path, ...]
    kept: tuple[Path, ...]


def write_project(folder: Path) -> Written:
    """Write ``perf_tests/``, an empty ``baselines/`` and a commented configuration; have git
    ignore the reports.

    Raises:
        ConfigError: the folder cannot be written.
    """
    done: dict[str, list[Path]] = {"created": [], "changed": [], "kept": []}
    for name, text in _files(folder):
        path = folder / name
        try:
            done[_write(path, text)].append(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    return Written(**{name: tuple(paths) for name, paths in done.items()})


def _write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if path.name != _IGNORE_FILE:
            return "kept"
        there = _read(path)
        if text.strip("/\n") in (line.strip().strip("/") for line in there.splitlines()):
            return "kept"
        with path.open("a", encoding="utf-8") as file:
            file.write(text if there.endswith("\n") or not there else f"\n{text}")
        return "changed"
    return "created"


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for source in sorted(shipped("perf_tests").glob("*.py")):
        yield f"perf_tests/{source.name}", source.read_text(encoding="utf-8")
    yield "baselines/README.md", _BASELINES_README
    yield _IGNORE_FILE, "llmperf-report/\n"
    present = {name: mark for name, mark in _CONFIGURED.items() if (folder / name).is_file()}
    configured = any(mark in _read(folder / name) for name, mark in present.items())
    ours = _read(folder / _CONFIG) == config_text()
    yield (_EXAMPLE if configured and not ours else _CONFIG), config_text()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def config_text() -> str:
    """Every ini key of the plugin, commented out, with its help."""
    lines = ["[pytest]", "# pytest-asyncio warns without it", _LOOP_SCOPE]
    lines += ["", "# pytest-llmperf; the command line overrides these"]
    for option in OPTIONS:
        if option.ini:
            words = textwrap.wrap(option.help, 96, break_on_hyphens=False)
            lines += ["", *(f"# {line}" for line in words)]
            example = (
                "true" if option.kind == "flag" else option.metavar or "|".join(option.choices)
            )
            lines.append(f"# {option.key} = {example}")
    return "\n".join(lines) + "\n"
