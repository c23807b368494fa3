"""Several runs side by side: one table a phase, changes against the first run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmperf.grid import Cell, format_tokens
from pytest_llmperf.report.cells import STATUSES, speed, status, valid
from pytest_llmperf.report.numbers import MISSING, change, number
from pytest_llmperf.report.view import View
from pytest_llmperf.result import CellRecord

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
        groups = [
            _group(
                context, levels, views, names, lambda view, level, c=context: view.decode(c, level)
            )
            for context in contexts
        ]
        caption = (
            "Total tok/s, and change against the first run, by context and simultaneous requests"
        )
        tables.append(Table("Sustained decode", caption, [str(level) for level in levels], groups))
    if prefills:
        groups = [
            _group(context, [1], views, names, lambda view, _, c=context: view.prefill(c))
            for context in prefills
        ]
        caption = "Prompt tok/s, and change against the first run, by context"
        tables.append(Table("Prefill", caption, ["tok/s"], groups))
    return tables


def _group(
    context: int,
    levels: Sequence[int],
    views: Sequence[View],
    names: Sequence[str],
    find: Callable[[View, int], CellRecord | None],
) -> Group:
    first = [find(views[0], level) for level in levels]
    rows = [
        Row(name, [_entry(find(view, level), None if view is views[0] else base)
                   for level, base in zip(levels, first, strict=True)])
        for view, name in zip(views, names, strict=True)
    ]  # fmt: skip
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
