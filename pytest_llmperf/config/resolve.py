"""Option values -> frozen ``Settings``; every value that cannot be used gets one clear error.

Precedence: command line > marker > profile > ini > default (see ``options.Values``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmperf.config.options import BY_STEM, Values, bad_value
from pytest_llmperf.model.choices import UpdateMode
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import DEFAULT_GRID, Cell, Grid, parse_tokens
from pytest_llmperf.model.keys import check_key
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.settings import Connection, Settings, Timing, Workload

T = TypeVar("T")

LOAD_KINDS = ("popen", "ssh", "vagrant_ssh", "socket")
"""Of execnet's gateways."""

REPORT_DIR = Path("llmperf-report")
REPORT_FILES = {"html": "report.html", "json": "results.json", "md": "report.md"}


def _number(
    values: Values, stem: str, default: T, *, least: float, above: bool = False
) -> float | T:
    raw = values.get(stem)
    if raw is None:
        return default
    try:
        number = float(raw)
    except (TypeError, ValueError):
        raise bad_value(stem, f"{raw!r} is not a number") from None
    if not math.isfinite(number) or number < least or (above and number == least):
        unit = " s" if BY_STEM[stem].metavar == "SECONDS" else ""
        bound = f"{'more than' if above else 'at least'} {least:g}{unit}"
        raise bad_value(stem, f"{raw} must be {bound}")
    return number


def _whole(values: Values, stem: str, default: int, *, least: int) -> int:
    number = _number(values, stem, float(default), least=least)
    if number != int(number):
        raise bad_value(stem, f"{number} is not a whole number")
    return int(number)


def _tokens(values: Values, stem: str, default: T, *, least: int = 1) -> int | T:
    raw = values.get(stem)
    if raw is None:
        return default
    try:
        tokens = parse_tokens(str(raw))
    except ValueError as error:
        raise bad_value(stem, str(error)) from None
    if tokens < least:
        raise bad_value(stem, f"{raw} must be at least {least}")
    return tokens


def _axis(
    values: Values, stem: str, parse: Callable[[str], int], default: tuple[int, ...]
) -> tuple[int, ...]:
    texts = values.items(stem)
    if not texts:
        if values.given(stem) is not None:
            raise bad_value(stem, "the list is empty")
        return default if values.get(stem) is None else ()
    numbers = []
    for text in texts:
        try:
            numbers.append(parse(text))
        except ValueError as error:
            raise bad_value(stem, str(error)) from None
    twice = {n for n in numbers if numbers.count(n) > 1}
    if twice:
        raise bad_value(stem, f"{texts} names {', '.join(map(str, sorted(twice)))} more than once")
    return tuple(sorted(numbers))


def _streams(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise ValueError(f"{text!r} is not a number of requests; write 1, 2, 4")
    return int(text)


def read_grid(values: Values) -> Grid:
    """The declared matrix.

    Raises:
        ConfigError: for a list that does not parse, is empty or names a value twice.
    """
    contexts = _axis(values, "contexts", parse_tokens, DEFAULT_GRID.contexts)
    concurrency = _axis(values, "concurrency", _streams, DEFAULT_GRID.concurrency)
    # contexts given for this run also stand for the prefill, else a slice would drag the profile's
    # long prefills along
    own = values.given("contexts") is not None and values.given("prefill-contexts") is None
    prefill = contexts if own else _axis(values, "prefill-contexts", parse_tokens, contexts)
    return Grid(contexts, concurrency, prefill)


def grid_overridden(values: Values) -> bool:
    """Whether this run's grid is not the profile's own."""
    return any(
        values.given(stem) is not None for stem in ("contexts", "concurrency", "prefill-contexts")
    )


def read_runs(values: Values) -> int:
    """How many runs the session has.

    Raises:
        ConfigError: not a whole number above 0.
    """
    return _whole(values, "runs", 1, least=1)


def _read_key(values: Values) -> str | None:
    key = values.get("api-key") or os.environ.get("LLMPERF_API_KEY")
    path = values.get("api-key-file")
    if not key and path:
        try:
            key = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise bad_value("api-key-file", f"cannot read {path}: {error}") from None
        if not key:
            raise bad_value("api-key-file", f"{path} is empty")
    if key and (not key.isascii() or not key.isprintable()):
        raise bad_value("api-key", "the key holds characters that cannot stand in a header")
    return key or None


def _read_headers(values: Values) -> dict[str, str]:
    headers = {}
    for text in values.whole("header"):
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\n" in text or "\r" in text:
            raise bad_value("header", "write NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def read_connection(values: Values, url: str, stem: str = "url") -> Connection:
    """How to reach ``url``, which is a value of the option ``stem``.

    Raises:
        ConfigError: for a URL, header, key file or CA file that cannot be used.
    """
    for name, text in ((stem, url), ("metrics-url", values.get("metrics-url"))):
        if text is not None and not text.lower().startswith(("http://", "https://")):
            raise bad_value(
                name, f"{text!r} is not a server address; write http://host:port, or sim"
            )
    ca = values.get("ca")
    if ca and not Path(ca).is_file():
        raise bad_value("ca", f"there is no file {ca}")
    return Connection(
        url=url.rstrip("/"),
        api_key=_read_key(values),
        headers=_read_headers(values),
        verify=False if values.get("insecure") else (ca or True),
        metrics_url=values.get("metrics-url"),
    )


def _read_extra_body(values: Values) -> dict[str, Any]:
    text = values.get("extra-body")
    if not text:
        return {}
    if isinstance(text, Mapping):
        return dict(text)
    try:
        body = json.loads(text)
    except ValueError as error:
        raise bad_value("extra-body", f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_value("extra-body", "must be a JSON object")
    return body


def parse_tolerances(texts: Iterable[str]) -> dict[str, float]:
    """``METRIC=0.1`` or ``METRIC@CELL=0.1`` as fractions.

    Raises:
        ConfigError: for one that is not so.
    """
    tolerances = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        metric, at, cell = name.partition("@")
        if not equals or metric not in METRICS:
            raise bad_value(
                "tolerance", f"{text!r}: write METRIC=0.1 with one of {', '.join(METRICS)}"
            )
        try:
            if at:
                Cell.parse(cell)
            fraction = float(number)
        except ValueError as error:
            raise bad_value("tolerance", f"{text!r}: {error}") from None
        if not 0 < fraction < 1:
            raise bad_value("tolerance", f"{text!r}: a fraction, 0.1 is 10 %")
        tolerances[name] = fraction
    return tolerances


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """``METRIC=500`` or ``METRIC@PATTERN=500``, in the metric's unit.

    Raises:
        ConfigError: for one that is not so.
    """
    limits = {}
    for text in texts:
        key, equals, number = text.rpartition("=")
        try:
            if not equals:
                raise ValueError("write METRIC=VALUE or METRIC@PATTERN=VALUE")
            limits[check_key(key)] = value = float(number)
            if not (math.isfinite(value) and value > 0):
                raise ValueError("a limit is above 0, in the metric's unit")
        except ValueError as error:
            raise bad_value("limit", f"{text!r}: {error}") from None
    return limits


def parse_gates(names: Iterable[str]) -> tuple[str, ...]:
    """Metrics by name.

    Raises:
        ConfigError: for one that there is not.
    """
    gates = tuple(names)
    for name in gates:
        if name not in METRICS:
            raise bad_value("gate", f"{name!r} is none of {', '.join(METRICS)}")
    return gates


def _read_run_info(texts: Iterable[str]) -> dict[str, str]:
    info: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and key.isidentifier():
            info[key] = value
            continue
        import yaml

        try:
            loaded = yaml.load(Path(text).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise bad_value("run-info", f"cannot read {text} as YAML: {error}") from None
        if not isinstance(loaded, dict) or not all(isinstance(v, str) for v in loaded.values()):
            raise bad_value("run-info", f"{text} must hold one 'key: value' a line")
        info.update(loaded)
    return info


def _read_reports(values: Values) -> dict[str, Path]:
    texts = values.whole("report")
    if not texts:
        return {name: REPORT_DIR / file for name, file in REPORT_FILES.items()}
    reports: dict[str, Path] = {}
    for text in texts:
        name, _, path = text.partition(":")
        if name == "none" and not path:
            continue
        if name not in REPORT_FILES:
            raise bad_value("report", f"{name!r} is none of {', '.join(REPORT_FILES)}, none")
        target = Path(path) if path else REPORT_DIR / REPORT_FILES[name]
        if not target.name:
            raise bad_value("report", f"{text!r} names no file")
        reports[name] = target
    if len(set(reports.values())) < len(reports):
        raise bad_value("report", "two formats in one file; give each its own")
    return reports


def _read_workers(values: Values) -> int | None:
    text = str(values.get("workers") or "auto")
    if text == "auto":
        return None
    if values.get("load"):
        raise bad_value(
            "workers", "--llm-load says which processes generate the load; leave it out"
        )
    if not text.isdecimal() or int(text) < 1:
        raise bad_value("workers", f"{text!r} is no number of processes; write 2, or auto")
    return int(text)


def parse_load(texts: Iterable[str]) -> tuple[str, ...]:
    """``ssh=user@host//python=python3``, or ``4*popen`` for four such: one specification each.

    Raises:
        ConfigError: for one that is not so.
    """
    specs: list[str] = []
    for text in texts:
        number, star, spec = text.partition("*")
        times = int(number) if star and number.isdecimal() else 1
        spec = spec if star and number.isdecimal() else text
        kind = spec.partition("//")[0].partition("=")[0]
        if kind not in LOAD_KINDS or not times:
            raise bad_value(
                "load",
                f"{text!r}: write ssh=user@host//python=python3, or 4*popen for four processes"
                " on this host",
            )
        specs += [spec] * times
    return tuple(specs)


def read_settings(values: Values) -> Settings:
    """Everything the run was asked to do.

    Raises:
        ConfigError: for the first value that cannot be used, with what to write instead.
    """
    if (values.get("update-reason") or values.get("prune")) and not values.get("update-baselines"):
        raise ConfigError("--llm-update-reason and --llm-prune go with --update-baselines")
    runs = read_runs(values)
    update_mode: UpdateMode = values.get("update-mode") or ("moved" if runs == 1 else "add")
    if runs > 1 and values.get("update-baselines") and update_mode != "add":
        raise bad_value("update-mode", f"{runs} runs can only be added to a baseline; write add")
    return Settings(
        hardware=values.get("hardware"),
        model=values.get("model"),
        engine=values.get("engine"),
        grid=read_grid(values),
        grid_overridden=grid_overridden(values),
        workload=Workload(
            max_tokens=_tokens(values, "max-tokens", 4096, least=16),
            endpoint=values.get("endpoint") or "chat",
            prompts=values.get("prompts") or "shared",
            temperature=_number(values, "temperature", 1.0, least=0),
            top_p=_number(values, "top-p", 1.0, least=0, above=True),
            extra_body=_read_extra_body(values),
        ),
        timing=Timing(
            duration_s=_number(values, "duration", 30.0, least=0.1),
            settle_s=_number(values, "settle", 2.0, least=0),
            stall_s=_number(values, "stall", 30.0, least=0, above=True),
        ),
        capacity=values.get("capacity") or "reserved",
        kv_tokens=_tokens(values, "kv-tokens", None),
        wait_s=_number(values, "wait", None, least=0),
        tolerances=parse_tolerances(values.items("tolerance")),
        limits=parse_limits(values.items("limit")),
        gate=parse_gates(values.items("gate")),
        run_info=_read_run_info(values.whole("run-info")),
        baselines_dir=Path(values.get("baselines-dir") or "baselines"),
        serve=values.get("serve"),
        against=values.get("against"),
        serve_against=values.get("serve-against"),
        runs=runs,
        restarts=_whole(values, "restarts", 2, least=0),
        update=bool(values.get("update-baselines")),
        update_mode=update_mode,
        update_reason=values.get("update-reason"),
        prune=bool(values.get("prune")),
        dry_run=bool(values.get("dry-run")),
        allow_mismatch=bool(values.get("allow-mismatch")),
        allow_new=bool(values.get("allow-new")),
        fail_on_improvement=bool(values.get("fail-on-improvement")),
        reports=_read_reports(values),
        workers=_read_workers(values),
        load=parse_load(values.whole("load")),
    )
