"""Clocks of two hosts, tied by round trips: what is claimed always holds."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.measure.clocks import Tie, Trip, Unsteady, during, tie

ways = st.floats(1e-5, 0.2)


@given(
    offset=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(ways, ways), min_size=1, max_size=20),
)
def test_the_offset_is_within_its_error(offset: float, trips: list[tuple[float, float]]) -> None:
    """Whatever the two ways take, and however unlike they are; one good round trip is enough."""
    at, seen = 1000.0, []
    for there, back in trips:
        seen.append(Trip(at, at + there + offset, at + there + back))
        at += there + back
    tied = tie(seen)
    rounding = 1e-9
    assert abs(tied.offset - offset) <= tied.error + rounding
    assert tied.error <= min(there + back for there, back in trips) / 2 + rounding


def test_a_quick_way_there_and_a_quick_way_back_are_enough() -> None:
    """Though no single round trip is: each bounds the offset from one side."""
    tied = tie([Trip(0.0, 5.001, 0.1), Trip(1.0, 6.1, 1.101)])
    assert tied.offset == pytest.approx(5.0, abs=0.002)
    assert tied.error == pytest.approx(0.001, abs=1e-6)


def test_a_clock_that_moves_while_it_is_read_is_refused() -> None:
    with pytest.raises(Unsteady, match="moved by 99"):
        tie([Trip(0.0, 5.0005, 0.001), Trip(1.0, 6.1005, 1.001)])


@pytest.mark.parametrize("seed", range(5))
def test_a_drifting_clock_is_within_the_error_all_the_time(seed: int) -> None:
    """50 parts per million over a cell of 60 s, the offset taken at both ends only."""
    random = Random(seed)

    def ahead(at: float) -> float:
        return 42.0 + 5e-5 * at

    def tie_at(at: float) -> Tie:
        trips = []
        for n in range(20):
            sent = at + n * 0.01
            there, back = random.expovariate(1000), random.expovariate(1000)
            trips.append(Trip(sent, sent + there + ahead(sent + there), sent + there + back))
        return tie(trips)

    tied = during(tie_at(0.0), tie_at(60.0))
    for at in (0.0, 20.0, 40.0, 60.0):
        assert abs(tied.offset - ahead(at)) <= tied.error + 1e-5
    assert tied.error < 0.003


def test_a_clock_that_was_moved_during_the_cell_is_refused() -> None:
    """As of a host that was suspended."""
    with pytest.raises(Unsteady, match=r"moved by 500\.0 ms .* during the cell"):
        during(Tie(1.0, 1e-4, 0.0), Tie(1.5, 1e-4, 30.0))
