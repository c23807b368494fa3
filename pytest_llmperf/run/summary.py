"""The end of a run in pytest's terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.report.github import annotate, append_summary
from pytest_llmperf.report.terminal import render
from pytest_llmperf.report.view import View

if TYPE_CHECKING:
    import pytest

    from pytest_llmperf.model.result import RunResult
    from pytest_llmperf.run.session import Run
    from pytest_llmperf.run.workers import Gathered


def write_summary(
    run: Run | Gathered, terminal: pytest.TerminalReporter, number: int = 1, runs: int = 1
) -> None:
    """Matrix, failures, counts; what an update did; where the reports are.

    Of several runs, those before the last one get a line, if they went well.
    """
    terminal.write_sep("=", f"llmperf: run {number} of {runs}" if runs > 1 else "llmperf")
    if run.records and run.final is not None:
        verdict = View(run.final).verdict
        if number < runs and verdict.level != "fail":
            terminal.write_line(f"{verdict.headline}. {verdict.detail}".rstrip())
        else:
            _write_lines(run.final, terminal)
    elif run.empty:
        terminal.write_line(f"llmperf: {run.empty}; this run is not green", red=True)
    for text in run.update_text.splitlines():
        terminal.write_line(text, green=text.startswith("+ "), red=text.startswith("- "))
    for path in run.outputs.written:
        if path not in run.outputs.unwritable:
            terminal.write_line(f"report: {path}")
    for path, why in run.outputs.unwritable.items():
        terminal.write_line(f"llmperf: {path} was not written ({why}); exit status 1", red=True)


def _write_lines(result: RunResult, terminal: pytest.TerminalReporter) -> None:
    for line in render(result, width=terminal._tw.fullwidth):
        for segment in line:
            terminal.write(segment.text, **segment.markup)
        terminal.write_line("")


def write_github(run: Run | Gathered, terminal: pytest.TerminalReporter) -> None:
    """On GitHub Actions: annotations of what failed, and the report as the job's summary."""
    if os.environ.get("GITHUB_ACTIONS") != "true" or not run.records or run.final is None:
        return
    for line in annotate(run.final):
        terminal.write_line(line)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            append_summary(run.final, Path(summary))
        except OSError as error:
            terminal.write_line(f"llmperf: no job summary: {error}", red=True)
