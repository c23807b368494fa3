"""Several runs side by side: one table a phase, changes against the first run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.result import CellRecord
from pytest_llmperf.report.cells import STATUSES, speed, status, valid
from pytest_llmperf.report.numbers import MISSING, change, number
from pytest_llmperf.report.view import View

_SHADES = (0.03, 0.10, 0.20)
"""Changes at which a shade begins. No verdict: runs of two machines have no common noise."""


@dataclass(frozen=True)
class Entry:
    text: str
    change: str = ""
    shade: str = ""


@dataclass(frozen=True)
class Row:
    """One run in one context."""

    label: str
    entries: list[Entry]


@dataclass(frozen=True)
class Group:
    """A context, with a row a run."""

    label: str
    lines: list[Row]


@dataclass(frozen=True)
class Table:
    title: str
    caption: str
    heads: list[str]
    groups: list[Group]


def compare(views: Sequence[View], names: Sequence[str]) -> list[Table]:
    """Return the decode and the prefill table over all cells that any of the runs has."""
    levels = sorted({level for view in views for level in view.concurrency})
    contexts = sorted({context for view in views for context in view.contexts})
    prefills = sorted({Cell.parse(r.cell).context for view in views for r in view.prefills})
    tables = []
    if contexts:
        caption = "Total tok/s, and change against the first run, by context and requests at once"
        groups = [
            _group(context, names, [[v.decode(context, level) for level in levels] for v in views])
            for context in contexts
        ]
        tables.append(Table("Sustained decode", caption, [str(level) for level in levels], groups))
    if prefills:
        caption = "Prompt tok/s, and change against the first run, by context"
        groups = [_group(c, names, [[view.prefill(c)] for view in views]) for c in prefills]
        tables.append(Table("Prefill", caption, ["tok/s"], groups))
    return tables


def _group(
    context: int, names: Sequence[str], runs: Sequence[Sequence[CellRecord | None]]
) -> Group:
    rows = [
        Row(
            name,
            [
                _entry(record, None if n == 0 else base)
                for record, base in zip(records, runs[0], strict=True)
            ],
        )
        for n, (name, records) in enumerate(zip(names, runs, strict=True))
    ]
    return Group(format_tokens(context), rows)


def _entry(record: CellRecord | None, base: CellRecord | None) -> Entry:
    if record is None:
        return Entry(MISSING, shade="none")
    m, before = valid(record), valid(base)
    if m is None:
        return Entry(STATUSES[status(record)], shade="none")
    rate, old = speed(m), speed(before) if before else None
    if rate is None or not old:
        return Entry(number(rate))
    delta = rate / old - 1
    step = sum(abs(delta) >= bound for bound in _SHADES)
    side = "better" if delta > 0 else "worse"
    return Entry(number(rate), change(delta), f"{side}-{step}" if step else "")
