"""How many processes a load gets, from what earlier loads took."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pytest_llmperf.measure.crew import LOCAL, Crew
from pytest_llmperf.model.result import ClientHealth, Status
from tests.measure.paced import QUICK, Paced, measuring
from tests.measure.test_workers import measure

BUSY = ClientHealth(cpu_share=0.99, stamps="kernel")
"""A full core: client bound."""


def used(share: float, workers: int = 1) -> ClientHealth:
    """A load that kept up, at this share of a core in its busiest process."""
    return ClientHealth(cpu_share=share, workers=workers, stamps="kernel")


def test_a_session_begins_with_this_process_alone() -> None:
    """However many streams: what they cost is not known, and the server may be slow."""
    assert Crew(cores=8).pick(1) == ()
    assert Crew(cores=8).pick(512) == ()


def test_the_rate_to_come_asks_for_processes() -> None:
    """What half as many streams took says what these will."""
    crew = Crew(cores=8)
    crew.learn(64, used(0.3))
    assert crew.pick(128) == ()
    crew.learn(128, used(0.6))
    assert crew.pick(128) == ()
    assert crew.pick(256) == (LOCAL,) * 2
    crew.learn(256, used(0.6, workers=2))
    assert crew.pick(512) == (LOCAL,) * 4
    assert crew.pick(64) == ()


def test_a_few_streams_say_nothing_of_many() -> None:
    """What one process does beside its streams would be multiplied with them."""
    crew = Crew(cores=8)
    crew.learn(1, used(0.04))
    assert crew.pick(128) == ()


def test_a_client_found_bound_gets_twice_the_processes() -> None:
    crew = Crew(cores=8)
    crew.learn(128, BUSY)
    assert crew.pick(128) == (LOCAL,) * 2
    crew.learn(128, BUSY.model_copy(update={"workers": 2}))
    assert crew.pick(128) == (LOCAL,) * 4


def test_no_more_processes_than_cores_or_streams() -> None:
    crew = Crew(cores=3)
    for workers in (1, 2, 3):
        crew.learn(8, BUSY.model_copy(update={"workers": workers}))
    assert len(crew.pick(8)) == 3
    assert len(crew.pick(2)) == 2


def test_what_was_asked_for_is_what_every_load_gets() -> None:
    """Whatever earlier ones took; but a stream is not divided."""
    crew = Crew(load=["popen", "ssh=gpu2"])
    crew.learn(8, BUSY)
    assert crew.pick(8) == ("popen", "ssh=gpu2")
    assert crew.pick(1) == ("popen",)
    assert Crew(workers=2, cores=1).pick(8) == (LOCAL,) * 2
    alone = Crew(workers=1, cores=8)
    alone.learn(8, BUSY)
    assert alone.pick(8) == ()


def test_a_cell_after_a_bound_one_is_measured_by_two_processes() -> None:
    """The same measurer: first from this process, then, once that was found bound, from two that
    stay up for the cell after."""
    paced = Paced(ttft=0.05, step=0.05)
    with (
        measuring(paced, timing=replace(QUICK, duration_s=1.0)) as (measurer, _),
        closing(Crew(cores=2)) as crew,
    ):
        measurer._setup = replace(measurer._setup, crew=crew)
        found = [measure(measurer, 4)]
        crew.learn(4, BUSY)
        found += [measure(measurer, 4), measure(measurer, 4)]
        pids = {process.pid for process in crew.pool._idle}
        assert len(pids) == 2
        measure(measurer, 4)
        assert {process.pid for process in crew.pool._idle} == pids
    assert [one.client.workers for one in found] == [1, 2, 2]
    assert {one.status for one in found} == {Status.VALID}
    for one in found:
        assert one.total_tok_s == pytest.approx(4 * 20, rel=0.04)
