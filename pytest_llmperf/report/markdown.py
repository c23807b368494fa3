"""The report as GitHub-flavoured Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.result import CellRecord, Outcome, RunResult
from pytest_llmperf.report.cells import (
    COLUMNS,
    STATUSES,
    attempt_texts,
    comparison_texts,
    headline,
    reasons,
    row,
    speed,
    speed_change,
    start_note,
    status,
    steadiest,
    telling,
    valid,
    verdict_note,
)
from pytest_llmperf.report.numbers import number, with_unit
from pytest_llmperf.report.view import (
    MEDIANS_NOTE,
    OVER_CAPACITY_NOTE,
    SIMULATED_NOTE,
    TERMS_NOTE,
    WARM_NOTE,
    Fact,
    View,
)

JOB_SUMMARY_BYTES = 1024 * 1024
"""What GitHub takes as the summary of one step."""

_SIGNS = {"pass": "✅", "fail": "❌", "info": "ℹ️"}


@dataclass(frozen=True)
class _Section:
    title: str
    body: str
    need: int
    """When room is short the section with the lowest need goes first; 9 always stays."""

    @property
    def text(self) -> str:
        return f"## {self.title}\n\n{self.body}" if self.title else self.body


def render(run: RunResult, limit_bytes: int | None = None) -> str:
    """Return the report.

    Args:
        limit_bytes: drop the least needed sections, and say so, until the text (UTF-8) fits.
    """
    view = View(run)
    sections = [
        _Section("", _head(view), 9),
        _Section("Regressions and failures", _failures(view), 8),
        _Section("Notes", _bullets(view.notes), 6),
        _Section("Hardware", _facts(view.hardware_facts), 4),
        _Section("Engine", _facts(view.engine_facts), 4),
        _Section("Run", _facts(view.run_facts), 4),
        _Section("Launch command", _fenced(view.launch_command), 3),
        _Section("Prefill", _prefill(view), 5),
        _Section("Sustained decode", _matrix(view), 7),
        _Section("Limits", _limits(view), 5),
        _Section("Warnings", _warnings(view), 2),
        _Section("All measurements", _measurements(view), 1),
        _Section("Comparisons", _comparisons(view), 0),
        _Section("Attempts", _attempts(view), 0),
    ]
    return _fit([section for section in sections if section.body], limit_bytes)


def _fit(sections: list[_Section], limit: int | None) -> str:
    kept, dropped = list(sections), list[str]()
    while True:
        note = f"\n\n_Left out to fit the size limit: {', '.join(dropped)}._" if dropped else ""
        text = "\n\n".join(section.text for section in kept) + note + "\n"
        if limit is None or len(text.encode()) <= limit:
            return text
        least = min(reversed(kept), key=lambda section: section.need)
        if least.need == 9:
            break
        kept.remove(least)
        dropped.insert(0, least.title)
    note = "\n\n_Cut to fit the size limit._\n"
    room = max(0, limit - len(note.encode()))
    return text.encode()[:room].decode(errors="ignore").rpartition("\n")[0] + note


def _head(view: View) -> str:
    verdict = view.verdict
    lines = [f"# {escape(view.title)}", escape(view.subtitle)]
    if view.run.simulated:
        lines.append(f"> **{SIMULATED_NOTE}**")
    lines.append(
        f"**{_SIGNS[verdict.level]} {escape(verdict.headline)}.** {escape(verdict.detail)}"
    )
    lines.append(" · ".join(f"{n} {outcome.value}" for outcome, n in view.counts))
    return "\n\n".join(line.strip() for line in lines if line)


def _failures(view: View) -> str:
    matrix = view.run.matrix.splitlines()
    rows = [
        [record.cell, record.outcome.value, *comparison_texts(c), attempt_texts(record, c)]
        for record in view.failures
        for c in telling(record)
    ]
    heads = ["Cell", "Verdict", "Metric", "Baseline", "Measured", "Change", "Tolerance", "Attempts"]
    parts = [escape(matrix[0]), _bullets(matrix[1:])] if matrix else []
    parts += [_table(heads, rows, "lllrrrrr")] if rows else []
    reasoned = [r for r in view.failures if reasons(r) or not telling(r)]
    parts += ["\n".join(f"- **{r.outcome.value}** `{r.cell}`{_because(r)}" for r in reasoned)]
    if command := view.rerun_command:
        parts.append("Measure the failed cells again:")
        parts.append(_fenced(command))
    return "\n\n".join(part for part in parts if part)


def _because(record: CellRecord) -> str:
    return f": {escape('; '.join(why))}" if (why := reasons(record)) else ""


def _prefill(view: View) -> str:
    if not view.prefills:
        return ""
    rows = []
    for record in view.prefills:
        m, judged = valid(record), headline(record)
        rows.append(
            [
                format_tokens(Cell.parse(record.cell).context),
                number(speed(m)) if m else STATUSES[status(record)],
                with_unit(m.ttft_ms if m else None, "ms", 0),
                *(comparison_texts(judged)[i] if judged else "—" for i in (1, 3, 4)),
                record.outcome.value,
            ]
        )
    heads = ["Context", "Prompt tok/s", "TTFT", "Baseline tok/s", "Change", "Tolerance", "Verdict"]
    return "Prompt tok/s by context length.\n\n" + _table(heads, rows, "lrrrrrl")


def _matrix(view: View) -> str:
    if not view.contexts:
        return ""
    below = ", with TTFT" + (
        f" and change against {escape(view.reference)}" if view.compared else ""
    )
    rows = [
        [
            f"**{format_tokens(context)}**",
            *(_matrix_cell(view.decode(context, level)) for level in view.concurrency),
        ]
        for context in view.contexts
    ]
    parts = [
        f"Total tok/s{below} below it; rows are context length, columns simultaneous requests.",
        _table(
            ["Context", *map(str, view.concurrency)],
            rows,
            "l" + "r" * len(view.concurrency),
            raw=True,
        ),
    ]
    if view.over_capacity:
        parts.append(OVER_CAPACITY_NOTE)
        listed = _bullets(f"{r.cell}: {'; '.join(reasons(r))}" for r in view.over_capacity)
        parts.append(_details("Cells over capacity", listed))
    return "\n\n".join([*parts, WARM_NOTE])


def _matrix_cell(record: CellRecord | None) -> str:
    if record is None:
        return ""
    m, judged = valid(record), steadiest(record)
    if m is None:
        word = STATUSES[status(record)]
        return f"**{word}**" if record.failed else word
    lines = [number(speed(m)), f"<sub>{with_unit(m.ttft_ms, 'ms', 0)} TTFT</sub>"]
    if judged is not None:
        lines.append(f"<sub>{speed_change(record)}</sub>")
    if record.outcome not in (Outcome.PASS, Outcome.MEASURED):
        lines.append(f"<sub>**{record.outcome.value}**</sub>")
    return "<br>".join(lines)


def _limits(view: View) -> str:
    rows = [
        [record.cell, check.verdict, str(check)]
        for record in view.records
        for check in record.limits
    ]
    return _table(["Cell", "Verdict", "Limit"], rows, "lll") if rows else ""


def _warnings(view: View) -> str:
    return _bullets(
        f"{code}: {text} ({', '.join(cells)})" for code, text, cells in view.cell_warnings
    )


def _measurements(view: View) -> str:
    if not view.records:
        return ""
    rows = [[value.text for value in row(record)] for record in view.records]
    align = "".join("r" if column.numeric else "l" for column in COLUMNS)
    terms = f" {TERMS_NOTE}" if view.compared else ""
    return f"{MEDIANS_NOTE}{terms}\n\n" + _table([column.label for column in COLUMNS], rows, align)


def _comparisons(view: View) -> str:
    records = [record for record in view.records if record.comparisons]
    return (
        _details(f"Every metric against {escape(view.reference)}", _comparison_table(records))
        if records
        else ""
    )


def _comparison_table(records: Iterable[CellRecord]) -> str:
    heads = [
        *("Cell", "Metric", "Baseline", "Measured", "Change", "Tolerance", "Attempts"),
        *("Baseline runs", "Verdict"),
    ]
    rows = [
        [
            record.cell,
            *comparison_texts(c),
            attempt_texts(record, c),
            str(c.n),
            verdict_note(c),
        ]
        for record in records
        for c in record.comparisons
    ]
    return _table(heads, rows, "llrrrrrrl")


def _attempts(view: View) -> str:
    rows = [
        [
            record.cell,
            f"{n}, {note}" if (note := start_note(record, attempt)) else str(n),
            STATUSES[attempt.status],
            number(speed(attempt)),
            with_unit(attempt.ttft_ms, "ms", 0),
            with_unit(attempt.itl_ms, "ms", 1),
            attempt.started,
            attempt.reason,
        ]
        for record in view.records
        if len(record.attempts) > 1
        for n, attempt in enumerate(record.attempts, 1)
    ]
    heads = [
        "Cell",
        "Attempt",
        "Status",
        "tok/s",
        "TTFT",
        "Time between tokens",
        "Started",
        "Reason",
    ]
    return _table(heads, rows, "lrlrrrll") if rows else ""


def _facts(facts: list[Fact]) -> str:
    return "\n".join(f"- {escape(label)}: {escape(value)}" for label, value in facts)


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escape(text)}" for text in texts)


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _fenced(text: str | None) -> str:
    """A code block whose fence is longer than any run of backticks within."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text.strip()}\n{fence}"


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], align: str, *, raw: bool = False
) -> str:
    """A table; ``align`` has an ``l`` or ``r`` a column; ``raw`` entries are Markdown already."""
    rules = ["---:" if side == "r" else ":---" for side in align]
    body = [[text if raw else escape(text) for text in entries] for entries in rows]
    return "\n".join(f"| {' | '.join(entries)} |" for entries in [list(heads), rules, *body])


def escape(text: str) -> str:
    """Make foreign text plain text, in tables too: no markup, HTML or mention gets through."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", text)
    return re.sub(r"@(?=\w)", "@\u200b", text)
