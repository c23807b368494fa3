"""The terminal summary: lines of styled segments that read well without colour. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.result import CellRecord, Outcome, RunResult, Status
from pytest_llmperf.report.cells import (
    comparison_texts,
    goodness,
    reasons,
    speed,
    speed_change,
    start_note,
    status,
    steadiest,
    telling,
    valid,
    verdict_note,
)
from pytest_llmperf.report.hosts import describe_hosts
from pytest_llmperf.report.numbers import number
from pytest_llmperf.report.view import View

T = TypeVar("T")

_COLUMN = 9
_LABEL = 8
_COLOURS = {
    Outcome.REGRESSED: "red",
    Outcome.LIMIT: "red",
    Outcome.CAPACITY_REGRESSION: "red",
    Outcome.INVALID: "red",
    Outcome.IMPROVED: "green",
    Outcome.PASS: "green",
    Outcome.UPDATED: "cyan",
    Outcome.NEW: "cyan",
    Outcome.UNGATED: "yellow",
    Outcome.OVERCAP: "yellow",
}
_MARKS = {Outcome.REGRESSED: "!", Outcome.LIMIT: "#", Outcome.IMPROVED: "^", Outcome.UNGATED: "~"}
_LEGEND = {"!": "regressed", "#": "beyond a limit", "^": "improved", "~": "not gated"}


class Segment(NamedTuple):
    """Text with the style names that pytest's terminal writer takes as keywords."""

    text: str
    style: tuple[str, ...] = ()

    @property
    def markup(self) -> dict[str, bool]:
        """For ``TerminalReporter.write(text, **markup)``."""
        return dict.fromkeys(self.style, True)


Line = list[Segment]


def render(run: RunResult, width: int = 80) -> list[Line]:
    """Return the summary, one list of segments a line.

    Args:
        width: columns of the terminal; a wide matrix and long texts are folded to fit.
    """
    view = View(run)
    parts = [
        _header(view),
        _matrix(view, width),
        _prefill(view, width),
        _failures(view, width),
        _lists(view, width),
        _notes(view, width),
        _closing(view),
    ]
    lines: list[Line] = []
    for part in filter(None, parts):
        lines += [[], *part] if lines else part
    return lines


def plain(lines: Iterable[Line]) -> str:
    """Join lines without any style."""
    return "\n".join("".join(part.text for part in line).rstrip() for line in lines)


def _header(view: View) -> list[Line]:
    run = view.run
    profile = f"profile {run.profile}" if run.profile else "no profile"
    facts = [view.model, view.engine] if run.against else [view.engine, profile, run.url]
    facts.append(f"{run.settings.duration_s:g} s per cell")
    lines = [_text(view.title, "bold"), _text(", ".join(fact for fact in facts if fact))]
    lines += [_text(f"load of {host}: {words}") for host, words in describe_hosts(run.cells)]
    if run.simulated:
        lines.append(_text("SIMULATED: numbers of the built-in simulator", "yellow", "bold"))
    return lines


def _matrix(view: View, width: int) -> list[Line]:
    if not view.contexts:
        return []
    against = f"; below, change to {view.reference}" if view.compared else ""
    lines = [_text(f"Sustained decode: total tok/s by context and streams{against}", "bold")]
    used: set[str] = set()
    for levels in _fold(view.concurrency, width):
        lines.append(_row("", [Segment(str(level), ("bold",)) for level in levels]))
        for context in view.contexts:
            records = [view.decode(context, level) for level in levels]
            lines.append(_row(format_tokens(context), [_value(record) for record in records]))
            below = [_below(record) for record in records]
            if any(segment.text for segment in below):
                lines.append(_row("", below))
            used |= {segment.text[0] for segment in below if segment.text[:1] in _LEGEND}
    if used:
        words = ", ".join(f"{mark} {word}" for mark, word in _LEGEND.items() if mark in used)
        lines.append(_text(" " * _LABEL + words))
    return lines


def _prefill(view: View, width: int) -> list[Line]:
    if not view.prefills:
        return []
    lines = [_text("Prefill: prompt tok/s by context, and TTFT in ms", "bold")]
    for records in _fold(view.prefills, width):
        names = [format_tokens(Cell.parse(record.cell).context) for record in records]
        lines.append(_row("", [Segment(name, ("bold",)) for name in names]))
        lines.append(_row("tok/s", [_value(record) for record in records]))
        below = [_below(record) for record in records]
        if any(segment.text for segment in below):
            lines.append(_row("change", below))
        ttfts = [m.ttft_ms if (m := valid(record)) else None for record in records]
        lines.append(_row("TTFT", [Segment(number(ttft, 0)) for ttft in ttfts]))
    return lines


def _value(record: CellRecord | None) -> Segment:
    measurement = valid(record)
    if measurement is not None:
        rate = speed(measurement)
        return Segment(number(rate, 0 if rate and rate >= 10_000 else 1))
    if record is None:
        return Segment(".")
    style = (_COLOURS.get(record.outcome, "yellow"),)
    return Segment("overcap" if status(record) is Status.OVER_CAPACITY else "INVALID", style)


def _below(record: CellRecord | None) -> Segment:
    """What stands under a value: its change, marked where its cell stands out."""
    if record is None:
        return Segment("")
    outcome = record.outcome
    style = (_COLOURS[outcome],) if outcome in _COLOURS and outcome is not Outcome.PASS else ()
    judged = steadiest(record)
    if outcome is Outcome.CAPACITY_REGRESSION:
        return Segment("!was ok", style)
    if judged is None or valid(record) is None:
        words = {Outcome.NEW: "new", Outcome.LIMIT: "#limit"}
        return Segment(words.get(outcome, ""), style)
    mark = _MARKS.get(outcome, "")
    return Segment(mark + speed_change(record).replace(" ", ""), style)


def _failures(view: View, width: int) -> list[Line]:
    """What failed each cell; metrics that did not are in the reports, and in the test's message."""
    lines = _wrap(view.run.matrix, width, "", "red")
    for record in view.failures:
        lines.append([Segment(record.outcome.value, ("red", "bold")), Segment(f" {record.cell}")])
        for why in reasons(record):
            lines += _wrap(why, width, "  ")
        failed = telling(record)
        if failed:
            lines.append(_text(_columns("metric", "baseline", "measured", "change", "tolerance")))
        for comparison in failed:
            texts = _columns(*comparison_texts(comparison))
            lines.append(_text(f"{texts}  {verdict_note(comparison)}", "red"))
        notes = [start_note(record, one) for one in record.attempts]
        if len(notes) > 1 and (any(notes) or not view.run.against):  # pairs have been told
            tries = [
                number(speed(one)) + (f" ({note})" if note else "")
                for one, note in zip(record.attempts, notes, strict=True)
            ]
            text = f"tok/s of the {len(tries)} attempts: {', '.join(tries)}"
            lines += _wrap(text, width, "  ")
    return lines


def _lists(view: View, width: int) -> list[Line]:
    lines: list[Line] = []
    for record in view.having(Outcome.IMPROVED):
        judged = max(record.comparisons, key=goodness, default=None)
        moved = ""
        if judged is not None:
            name, base, measured, delta, _ = comparison_texts(judged)
            moved = f": {name} {base} -> {measured} ({delta})"
        lines.append([Segment("IMPROVED", ("green",)), Segment(f" {record.cell}{moved}")])
    if view.limits:
        lines.append(_text(f"Limits: {view.limits}"))
    for outcome in (Outcome.UNGATED, Outcome.NEW, Outcome.UPDATED):
        if cells := [record.cell for record in view.having(outcome)]:
            lines += _wrap(f"{outcome.value} {', '.join(cells)}", width, "", _COLOURS[outcome])
    return lines


def _notes(view: View, width: int) -> list[Line]:
    notes = list(view.notes)
    for code, text, cells in view.cell_warnings:
        notes.append(f"{code}: {text} ({', '.join(cells)})")
    return [line for note in notes for line in _wrap(f"note: {note}", width, "", "yellow")]


def _closing(view: View) -> list[Line]:
    lines: list[Line] = []
    if view.records:
        line: Line = []
        for outcome, n in view.counts:
            style = (_COLOURS[outcome],) if outcome in _COLOURS else ()
            line += [Segment(", ")] if line else []
            line.append(Segment(f"{n} {outcome.value}", style))
        lines.append(line)
    verdict = view.verdict
    colour = {"pass": "green", "fail": "red", "info": "yellow"}[verdict.level]
    lines.append(_text(f"{verdict.headline}. {verdict.detail}".rstrip(), colour, "bold"))
    if rerun := view.rerun_command:
        lines += [_text("Measure the failed cells again:"), _text(f"  {rerun}", "bold")]
    return lines


def _text(text: str, *style: str) -> Line:
    return [Segment(text, style)]


def _wrap(text: str, width: int, indent: str, *style: str) -> list[Line]:
    """Prose, folded between words; the lines after the first are indented by two more."""
    wrapper = textwrap.TextWrapper(
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [_text(line, *style) for part in text.splitlines() for line in wrapper.wrap(part)]


def _row(label: str, segments: list[Segment]) -> Line:
    while segments and not segments[-1].text:
        segments = segments[:-1]
    cells = [Segment(segment.text.rjust(_COLUMN), segment.style) for segment in segments]
    return [Segment(label.ljust(_LABEL), ("bold",)), *cells]


def _columns(name: str, *values: str) -> str:
    return f"    {name:<18}" + "".join(f"{value:>12}" for value in values)


def _fold(items: list[T], width: int) -> list[list[T]]:
    n = max(1, (width - _LABEL) // _COLUMN)
    return [items[i : i + n] for i in range(0, len(items), n)]
