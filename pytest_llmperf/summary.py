"""The end of a run in pytest's terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.report.terminal import render

if TYPE_CHECKING:
    import pytest

    from pytest_llmperf.session import Run


def write_summary(run: Run, terminal: pytest.TerminalReporter) -> None:
    """Matrix, failures, counts; what an update did; where the reports are."""
    terminal.section("llmperf")
    if run.records and run.final is not None:
        for line in render(run.final, width=terminal._tw.fullwidth):
            for segment in line:
                terminal.write(segment.text, **segment.markup)
            terminal.write_line("")
    if run.empty:
        terminal.write_line(f"llmperf: {run.empty}; this run is not green", red=True)
    for text in run.update_text.splitlines():
        terminal.write_line(text, green=text.startswith("+ "), red=text.startswith("- "))
    for path in run.written:
        terminal.write_line(f"report: {path}")
