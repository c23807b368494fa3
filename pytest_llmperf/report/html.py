"""The report as one self-contained HTML file: no network, light and dark, phone and print.

Templates are Jinja2 with autoescape; the page's policy allows only its own style and script, so
that even text that slipped through could neither run nor load anything. Charts are drawn by a
small template of ours: a plotting library's SVG is 36 KB a chart with colours and fonts of its
own (a full matrix has some 150 charts), follows no dark theme and is not named for readers of
the screen.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pytest_llmperf import __version__
from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement, RunResult
from pytest_llmperf.report import cells, numbers
from pytest_llmperf.report.charts import Chart, Line, histogram, line_chart
from pytest_llmperf.report.compare import compare
from pytest_llmperf.report.fields import fields
from pytest_llmperf.report.view import (
    MEDIANS_NOTE,
    OVER_CAPACITY_NOTE,
    SIMULATED_NOTE,
    TERMS_NOTE,
    WARM_NOTE,
    View,
)

_NOTES = {
    "medians": MEDIANS_NOTE,
    "over_capacity": OVER_CAPACITY_NOTE,
    "simulated": SIMULATED_NOTE,
    "terms": TERMS_NOTE,
    "warm": WARM_NOTE,
}


@dataclass(frozen=True)
class _Run:
    """A run with what the templates need beside its view."""

    id: str
    name: str
    view: View
    json: Markup
    decode_chart: Chart | None
    prefill_chart: Chart | None


@dataclass(frozen=True)
class _Try:
    label: str
    measurement: Measurement


def render(runs: Sequence[RunResult], names: Sequence[str] = ()) -> str:
    """Return the page for one run, or for several side by side.

    Args:
        names: what to call the runs, e.g. their files; by default A, B, …
    """
    if not runs:
        raise ValueError("no run to report")
    names = names or [chr(ord("A") + i % 26) for i in range(len(runs))]
    shown = [
        _prepare(View(run), f"r{i}", name)
        for i, (run, name) in enumerate(zip(runs, names, strict=True), 1)
    ]
    style, script = _text("style.css"), _text("script.js")
    title = shown[0].view.title if len(runs) == 1 else f"{len(runs)} runs: {', '.join(names)}"
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            runs=shown,
            title=title,
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            comparison=compare([run.view for run in shown], names) if len(runs) > 1 else [],
        )
    )
    return page.lstrip()


def _prepare(view: View, id_: str, name: str) -> _Run:
    document = json.dumps(view.run.model_dump(mode="json"), allow_nan=False)
    safe = document.replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return _Run(
        id=id_,
        name=name,
        view=view,
        json=Markup(safe),
        decode_chart=_decode_chart(view),
        prefill_chart=_prefill_chart(view),
    )


def _decode_chart(view: View) -> Chart | None:
    lines, levels = [], view.concurrency
    for colour, context in enumerate(view.contexts):
        records = [(i, view.decode(context, level)) for i, level in enumerate(levels)]
        lines += _pair(format_tokens(context), records, colour)
    return line_chart(
        "Total tok/s over simultaneous requests, by context",
        f"One line a context, from {format_tokens(view.contexts[0])} to "
        f"{format_tokens(view.contexts[-1])} tokens; the baseline is dashed. "
        "The matrix above has the numbers."
        if view.contexts
        else "",
        "simultaneous requests",
        "tok/s",
        lines,
        x_names=[str(level) for level in levels],
    )


def _prefill_chart(view: View) -> Chart | None:
    names = [format_tokens(Cell.parse(record.cell).context) for record in view.prefills]
    return line_chart(
        "Prefill tok/s over context",
        "Prompt tokens per second by context length; the baseline is dashed. "
        "The table above has the numbers.",
        "context",
        "tok/s",
        _pair("", list(enumerate(view.prefills)), 0),
        x_names=names,
        size=(640, 280),
    )


def _pair(label: str, records: Sequence[tuple[int, CellRecord | None]], colour: int) -> list[Line]:
    """The measured line and, behind it, the baseline's."""
    measured, before = [], []
    for i, record in records:
        m = cells.valid(record)
        rate = cells.speed(m) if m else None
        if rate is not None:
            measured.append((float(i), rate))
        judged = cells.headline(record) if record else None
        if judged and judged.baseline is not None:
            before.append((float(i), judged.baseline))
    return [Line(label, before, colour, baseline=True), Line(label, measured, colour)]


def _cell_charts(record: CellRecord) -> list[Chart]:
    """The window over time, and the distributions of TTFT and ITL, of the judged attempt."""
    m = cells.valid(record)
    if m is None:
        return []
    charts = []
    if m.series is not None:
        series = m.series
        points = [
            ((i + 0.5) * series.bin_s, tokens / series.bin_s)
            for i, tokens in enumerate(series.tokens)
        ]
        judged = cells.headline(record)
        span = (0.0, len(points) * series.bin_s)
        before = [(x, judged.baseline) for x in span] if judged and judged.baseline else []
        charts.append(
            line_chart(
                "Total tok/s over the window",
                f"{len(points)} bins of {series.bin_s:g} s; the baseline is dashed.",
                "seconds",
                "tok/s",
                [Line("baseline", before, 7, baseline=True), Line("", points)],
                size=(420, 240),
                dots=False,
            )
        )
    charts.append(histogram("TTFT over requests", m.ttfts_ms, "ms"))
    charts.append(histogram("Time between tokens over requests", m.itls_ms, "ms"))
    return [chart for chart in charts if chart is not None]


def _tries(record: CellRecord) -> list[_Try]:
    """The attempts with their names; the one that was judged says so."""
    attempts = record.attempts or ([record.measurement] if record.measurement else [])
    if len(attempts) == 1 and record.measurement is not None:
        return [_Try("Measured", record.measurement)]
    tries = []
    for number, attempt in enumerate(attempts, 1):
        note = cells.start_note(record, attempt)
        tries.append(_Try(f"Attempt {number}" + (f", {note}" if note else ""), attempt))
    if record.measurement is not None:
        tries.insert(0, _Try("Judged", record.measurement))
    return tries


def _shade(comparison: Comparison | None) -> str:
    """The step of the heat map, from the change in tolerances: hues that all eyes tell apart."""
    moved = cells.goodness(comparison)
    side, size = ("better", moved) if moved > 0 else ("worse", -moved)
    return "" if size < 1 / 3 else f"{side}-{1 if size <= 1 else 2 if size < 2 else 3}"


def _sections(view: View) -> list[tuple[str, str]]:
    present = {
        "failures": ("Regressions and failures", view.failures or view.run.matrix),
        "notes": ("Notes", view.notes or view.cell_warnings),
        "facts": ("Hardware, engine, run", True),
        "launch": ("Launch command", view.launch_command),
        "prefill": ("Prefill", view.prefills),
        "decode": ("Sustained decode", view.contexts),
        "measurements": ("All measurements", view.records),
        "cells": ("Cells in detail", view.records),
    }
    return [(anchor, name) for anchor, (name, there) in present.items() if there]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pytest_llmperf.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tokens"] = format_tokens
    environment.filters["arrows"] = lambda text: text.replace(" -> ", " → ")
    environment.globals.update(
        attempt_texts=cells.attempt_texts,
        cell_charts=_cell_charts,
        change=numbers.change,
        columns=cells.COLUMNS,
        comparison_texts=cells.comparison_texts,
        fields=fields,
        steadiest=cells.steadiest,
        speed_change=cells.speed_change,
        notes=_NOTES,
        number=numbers.number,
        parse=Cell.parse,
        reasons=cells.reasons,
        telling=cells.telling,
        row=cells.row,
        sections=_sections,
        shade=_shade,
        speed=cells.speed,
        status_word=lambda record: cells.STATUSES[cells.status(record)],
        tries=_tries,
        valid=cells.valid,
        verdict_note=cells.verdict_note,
        with_unit=numbers.with_unit,
    )
    return environment


@cache
def _text(name: str) -> str:
    return (files("pytest_llmperf.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
