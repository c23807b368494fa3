"""The cost model: curves through the measured grid, physics beyond it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.sim.cost import (
    HostCost,
    PrefillCost,
    StepCost,
    Surface,
    acceptance_for,
    rising,
    tokens_per_step,
)
from pytest_llmperf.sim.host import HostQueue

STREAMS = [1, 2, 4, 8, 16, 32, 64, 128]
STEPS_MS = [22.9, 35.7, 55.8, 87.1, 129.0, 186.0, 286.0, 440.0]
SURFACE = Surface.through(STREAMS, [8192, 65536], [STEPS_MS, [1.5 * ms for ms in STEPS_MS]])


def test_surface_passes_through_every_node() -> None:
    for n, ms in zip(STREAMS, STEPS_MS, strict=True):
        assert SURFACE.at(n, 8192) == pytest.approx(ms)
        assert SURFACE.at(n, 65536) == pytest.approx(1.5 * ms)


def test_surface_rises_between_nodes_without_overshoot() -> None:
    values = [SURFACE.at(n, 20_000) for n in range(1, 129)]
    assert all(a < b for a, b in itertools.pairwise(values))
    assert STEPS_MS[3] < SURFACE.at(11, 8192) < STEPS_MS[4]


def test_surface_holds_its_edge_values_outside() -> None:
    assert SURFACE.at(1, 0) == pytest.approx(22.9)
    assert SURFACE.at(300, 1 << 20) == pytest.approx(1.5 * 440)


def test_step_cost_adds_compute_and_reads_beyond_the_grid() -> None:
    cost = StepCost(Surface.through([1, 2], [100], [[1.0, 1.5]]), 2, 100, 0.25, 0.001)
    assert cost.seconds(2, 100) == pytest.approx(1.5)
    assert cost.seconds(6, 100) == pytest.approx(1.5 + 4 * 0.25)
    assert cost.seconds(2, 200) == pytest.approx(1.5 + 2 * 100 * 0.001)


def test_prefill_passes_through_its_rows_and_chunks_add_up() -> None:
    cost = PrefillCost((0.0, 8192.0, 16384.0), (0.0, 1.0, 2.5))
    assert cost.seconds(0, 16384) == pytest.approx(2.5)
    assert cost.seconds(0, 5000) + cost.seconds(5000, 16384) == pytest.approx(2.5)
    assert cost.seconds(16384, 24576) == pytest.approx(1.5), "goes on at the last rate"


def test_host_cost_grows_with_prompt_and_company() -> None:
    cost = HostCost((100.0, 200.0), (1.0, 3.0), ((1.0, 2.0), (2.0, 6.0)))
    assert cost.seconds(1, 50) == 1.0
    assert cost.seconds(2, 150) == pytest.approx((1.5 + 4.0) / 2)
    assert cost.seconds(5, 200) == pytest.approx(10.0)


def test_host_queue_lets_a_lone_request_through_in_its_own_time() -> None:
    queue: HostQueue[str] = HostQueue(lambda at_once, tokens: 1.0 * at_once)
    queue.add("a", 10, 5.0)
    assert queue.next_done() == pytest.approx(6.0)
    assert list(queue.done(5.9)) == []
    assert list(queue.done(6.0)) == ["a"]
    assert not queue


def test_host_queue_slows_all_that_are_there() -> None:
    """a is half done when b comes; both then run at half speed; b's second half is alone."""
    queue: HostQueue[str] = HostQueue(lambda at_once, tokens: 1.0 * at_once)
    queue.add("a", 10, 0.0)
    assert list(queue.done(0.5)) == []
    queue.add("b", 10, 0.5)
    assert list(queue.done(1.49)) == []
    assert list(queue.done(1.5)) == ["a"]
    assert queue.next_done() == pytest.approx(2.0)
    assert list(queue.done(10.0)) == ["b"]


def test_host_queue_lets_a_burst_through_together() -> None:
    queue: HostQueue[int] = HostQueue(lambda at_once, tokens: 0.1 * at_once)
    for key in range(10):
        queue.add(key, 10, 0.0)
    assert list(queue.done(0.999)) == []
    assert list(queue.done(1.0)) == list(range(10))


def test_host_queue_comes_to_an_end_at_large_times() -> None:
    """A clock that has run for months has steps coarser than the rounding of a small difference."""
    queue: HostQueue[int] = HostQueue(lambda at_once, tokens: 0.0137 * at_once)
    start = 3.3e7
    for key in range(7):
        queue.add(key, 10, start)
    assert list(queue.done(queue.next_done())) == list(range(7))


def test_host_queue_forgets_who_leaves() -> None:
    queue: HostQueue[str] = HostQueue(lambda at_once, tokens: 1.0 * at_once)
    queue.add("a", 10, 0.0)
    queue.add("b", 10, 0.0)
    queue.remove("a")
    queue.remove("a")
    assert list(queue.done(1.0)) == ["b"]


@given(st.floats(1.01, 7.9), st.just(7))
def test_acceptance_gives_the_mean_tokens_it_was_asked_for(mean: float, drafts: int) -> None:
    assert tokens_per_step(acceptance_for(mean, drafts), drafts) == pytest.approx(mean, rel=1e-6)


def test_tokens_per_step_is_the_sum_of_the_chances() -> None:
    assert tokens_per_step(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert tokens_per_step(1.0, 7) == 8.0
    assert tokens_per_step(0.9, 0) == 1.0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_rising_never_falls_and_keeps_the_sum(values: list[float]) -> None:
    fitted = rising(values)
    assert len(fitted) == len(values)
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(fitted))
    assert sum(fitted) == pytest.approx(sum(values))
    assert rising(sorted(values)) == pytest.approx(sorted(values))
