"""GitHub Actions: annotations of failed cells, and the report as the job's summary."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.model.redact import redact
from pytest_llmperf.model.result import CellRecord, RunResult
from pytest_llmperf.report import markdown
from pytest_llmperf.report.cells import comparison_texts, reasons
from pytest_llmperf.report.view import View

ANNOTATIONS = 10
"""As many errors of one step are shown; more are dropped without a word."""


def annotate(run: RunResult) -> list[str]:
    """A workflow command for each finding and failed cell, one for the matrix, and one warning of
    all that is watched."""
    failed = View(run).failures
    shown = failed
    others = len(run.findings) + bool(run.matrix)
    if len(failed) + others > ANNOTATIONS:
        shown = failed[: ANNOTATIONS - 1 - others]
    lines = [_error(finding.code, redact(finding.text)) for finding in run.findings]
    lines += [
        _error(f"{record.cell} {record.outcome.value}", _message(record), _file(record))
        for record in shown
    ]
    if rest := failed[len(shown) :]:
        names = ", ".join(record.cell for record in rest)
        lines.append(_error(f"{len(rest)} more cells failed", names))
    if run.matrix:
        lines.append(_error("the matrix is worse", redact(run.matrix)))
    if watched := View(run).watched:
        lines.append(f"::warning title=watched::{_data(redact(chr(10).join(watched)))}")
    return lines


def append_summary(run: RunResult, path: Path) -> None:
    """Append the report to the file that ``GITHUB_STEP_SUMMARY`` names, as far as it has room.

    Raises:
        OSError: when it cannot be written.
    """
    used = path.stat().st_size if path.exists() else 0
    text = markdown.render(run, limit_bytes=max(0, markdown.JOB_SUMMARY_BYTES - used - 1))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}" if used else text)


def _message(record: CellRecord) -> str:
    figures = []
    for comparison in record.comparisons:
        if comparison.verdict in ("worse", "missing"):
            name, base, measured, delta, tolerance = comparison_texts(comparison)
            figures.append(f"{name}: {base} -> {measured} ({delta}, tolerance {tolerance})")
    return "\n".join([*figures, *reasons(record)])


def _file(record: CellRecord) -> str:
    return record.nodeid.partition("::")[0]


def _error(title: str, message: str, file: str = "") -> str:
    place = f"file={_property(file)}," if file else ""
    return f"::error {place}title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
