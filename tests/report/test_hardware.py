"""Whose numbers these are: what the profile says of the machine is not taken for what was seen."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.result import UNVOUCHED, Notice, RunResult
from pytest_llmperf.report import html, markdown, terminal
from tests.support.results import published_run

WORDS = "nothing vouches for the hardware"
FORMATS = {
    "terminal": lambda run: terminal.plain(terminal.render(run)),
    "html": lambda run: html.render([run]),
    "md": markdown.render,
}


def unvouched() -> RunResult:
    return published_run(warnings=[Notice(code=UNVOUCHED, text=WORDS)])


@pytest.mark.parametrize("name", FORMATS)
def test_every_report_says_that_nothing_vouches_for_the_hardware(name: str) -> None:
    assert WORDS in FORMATS[name](unvouched())
    assert WORDS not in FORMATS[name](published_run())


@pytest.mark.parametrize("name", ["html", "md"])
def test_the_hardware_section_says_where_its_facts_come_from(name: str) -> None:
    """It lists the GPUs of the profile, and the page may be passed on without its notes."""
    words = "what the profile says, nothing seen at the server"
    assert words in FORMATS[name](unvouched())
    assert words not in FORMATS[name](published_run())
