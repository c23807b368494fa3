"""Load from several hosts, as reports show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_llmperf.model.result import ClientHealth, LoadHost, RunResult
from pytest_llmperf.report import html, markdown, terminal
from tests.support.results import change, find, published_run


def spread(run: RunResult, cell: str, share: float, bound: str = "") -> RunResult:
    """A cell that two hosts loaded."""
    hosts = [
        LoadHost(
            name="load1", processes=4, streams=12, share=share, cpu_share=share / 2,
            bound=bound, clock_offset_ms=7.0, clock_error_ms=share,
        ),
        LoadHost(name="this host", processes=1, streams=4, share=1 - share, cpu_share=0.125),
    ]  # fmt: skip
    measured = find(run, cell).measurement
    assert measured is not None
    client = ClientHealth(workers=5, hosts=hosts)
    return change(run, cell, measurement=measured.model_copy(update={"client": client}))


@pytest.mark.parametrize(
    "write",
    [
        markdown.render,
        lambda run: html.render([run]),
        lambda run: terminal.plain(terminal.render(run, 200)),
    ],
    ids=["markdown", "html", "terminal"],
)
def test_each_host_has_its_share_and_health(write: Callable[[RunResult], str]) -> None:
    """Its mean share, and the worst of any cell; a run from this host alone names none."""
    run = published_run()
    assert "this host" not in write(run)
    run = spread(run, "decode[8K-c16]", 0.75)
    run = spread(run, "decode[8K-c32]", 0.65, bound="client bound")
    text = write(run)
    assert (
        "4 processes, 70% of the tokens, the busiest used 38% of a core, clock ±0.75 ms,"
        " could not keep up in 1 cell"
    ) in text
    assert "1 process, 30% of the tokens, the busiest used 12% of a core" in text
    assert "load1" in text
