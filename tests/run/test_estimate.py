"""The wall-time estimate shown before the first cell."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.run.estimate import CELL_OVERHEAD_S, WARM_UP_CONTEXT, estimate_seconds

FAST = {8192: 1e9}


def test_nothing_takes_no_time() -> None:
    assert estimate_seconds([], 30, 2) == 0


def test_decode_cells_take_their_window_and_the_settling() -> None:
    cells = [Cell("decode", 8192, c) for c in (1, 2, 4)]
    assert estimate_seconds(cells, 30, 2, FAST) == pytest.approx(
        3 * (32 + CELL_OVERHEAD_S), abs=0.1
    )


def test_the_first_decode_cell_takes_its_load_before_it_too() -> None:
    """Settling and five seconds, or as long as a shorter window."""
    cells = [Cell("decode", 8192, c) for c in (1, 2)]
    for duration, load in ((30, 5), (3, 3)):
        took = estimate_seconds(cells, duration, 2, FAST, 5.0)
        expected = 2 * (duration + 2 + CELL_OVERHEAD_S) + 2 + load
        assert took == pytest.approx(expected, abs=0.1)


def test_a_context_is_prefilled_once_for_all_its_decode_cells() -> None:
    cells = [Cell("decode", 100_000, c) for c in (1, 2)]
    took = estimate_seconds(cells, 10, 2, {100_000: 10_000.0})
    assert took == pytest.approx(10 + 2 * (12 + CELL_OVERHEAD_S))


@pytest.mark.parametrize(("rate", "samples"), [(100_000.0, 3), (20_000.0, 2), (5_000.0, 1)])
def test_a_prefill_cell_repeats_until_three_samples_or_ten_seconds(
    rate: float, samples: int
) -> None:
    """1, 5 and 20 s for one sample of 100,000 tokens."""
    took = estimate_seconds([Cell("prefill", 100_000)], 30, 2, {100_000: rate})
    warm_up = WARM_UP_CONTEXT / rate
    assert took == pytest.approx(samples * 100_000 / rate + warm_up + CELL_OVERHEAD_S)


def test_a_prefill_cell_warms_the_decode_cells_of_its_context() -> None:
    rates = {50_000: 5_000.0}
    both = estimate_seconds([Cell("decode", 50_000, 1), Cell("prefill", 50_000)], 10, 2, rates)
    prefill = estimate_seconds([Cell("prefill", 50_000)], 10, 2, rates)
    assert both - prefill == pytest.approx(12 + CELL_OVERHEAD_S)


def test_without_a_baseline_a_rate_is_assumed() -> None:
    assert estimate_seconds([Cell("decode", 100_000, 1)], 10, 2) == pytest.approx(33)
    assert estimate_seconds([Cell("decode", 0, 1)], 10, 2, {8192: 0.0}) == pytest.approx(13)
