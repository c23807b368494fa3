"""All fields of a measurement as labelled values, so that a new field shows without more code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.model.result import Measurement
from pytest_llmperf.report.numbers import MISSING, exact

ARRAYS = ("ttfts_ms", "itls_ms", "series")
"""Drawn rather than listed."""

_LISTED_ELSEWHERE = ("phase", "context", "concurrency", "warnings", *ARRAYS)
_UNITS = (
    *(("_tok_s", "tok/s"), ("_ms", "ms"), ("_s", "s")),
    *(("_w", "W"), ("_mhz", "MHz"), ("_c", "°C"), ("_gb", "GB")),
)
_LABELS = {
    "total_tok_s_ci95": "Total, 95 % interval, tok/s",
    "prefill_samples": "Prefill samples, tok/s",
    "steps_s": "Steps, 1/s",
    "chunks_s": "Chunks, 1/s",
    "method": "Method version",
    "busy_tok_s": "Total without restart gaps, tok/s",
    "itl_few": "ITL rests on few arrivals",
    "ttft_n": "Requests with a TTFT",
    "ttft_burst_ms": "TTFT of the opening burst, ms",
    "ttft_restart_ms": "TTFT of restarts, ms",
    "ttft_warm": "Prompt was cached",
}
_GROUPS = {"std_errors": "Standard error"}
_WORDS = {
    "ttft": "TTFT",
    "itl": "ITL",
    "kv": "KV",
    "cpu": "CPU",
    "avg": "average",
    "gc": "GC",
    "sm": "SM",
}


@dataclass(frozen=True)
class Entry:
    """A value as people read it, and in full where it is a number (several: comma-separated)."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Field:
    """One line of a cell's details: a label, and an entry per attempt."""

    label: str
    entries: list[Entry]


def fields(attempts: Sequence[Measurement]) -> list[Field]:
    """Return every field that at least one attempt has."""
    flat = [dict(_flatten(attempt.model_dump(mode="json"))) for attempt in attempts]
    names = list(dict.fromkeys(name for values in flat for name in values))
    found = []
    for name in names:
        values = [one.get(name) for one in flat]
        if any(value not in (None, "", []) for value in values):
            between = " – " if name.endswith("ci95") else "; "
            found.append(Field(label(name), [_entry(value, between) for value in values]))
    return found


def label(name: str) -> str:
    """Turn a field's name into words with its unit: ``ttft_p99_ms`` is ``TTFT p99, ms``."""
    group, _, name = name.rpartition(".")
    ending, unit = next((u for u in _UNITS if name.endswith(u[0])), ("", ""))
    words = " ".join(_WORDS.get(word, word) for word in name.removesuffix(ending).split("_"))
    words = _LABELS.get(name) or words[:1].upper() + words[1:] + (f", {unit}" if unit else "")
    group = _GROUPS.get(group) or group[:1].upper() + group[1:].replace("_", " ")
    return f"{group}: {words}" if group else words


def _flatten(values: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if not group and name in _LISTED_ELSEWHERE:
            continue
        if isinstance(value, dict):
            yield from _flatten(value, name)
        elif name == "gpus":
            for gpu in value:
                yield from _flatten(gpu, f"GPU_{gpu['index']}")
        elif name == "hosts":
            for host in value:
                yield from _flatten(host, f"Load of {host['name']}".replace(".", "·"))
        else:
            yield (f"{group}.{name}" if group else name), value


def _entry(value: Any, between: str) -> Entry:
    items = value if isinstance(value, list) else [value]
    text = between.join(exact(item) for item in items) or MISSING
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in items)
    return Entry(text, ",".join(map(repr, items)) if numbers else "")
