"""What a run is judged by: counts, overrides, limits."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.grid import Cell, Grid
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.stats.distributions import sidak
from tests.verdict.build import CELL, GRID, PREFILL, gate, stored

ITL, TTFT, TOK_S = METRICS["itl_ms"], METRICS["ttft_ms"], METRICS["total_tok_s"]


def test_comparisons_are_counted_over_the_declared_grid() -> None:
    """12 decode cells with four gated metrics, 3 prefill cells with one."""
    assert gate().comparisons == 12 * 4 + 3
    assert gate(gate=("tokens_per_step",)).comparisons == 12 * 5 + 3


def test_only_what_the_declared_grid_and_the_baseline_share_is_counted() -> None:
    """A baseline's stale cells are not compared, and new cells have nothing to compare with."""
    cells = {cell.id: stored(cell) for cell in GRID}
    smaller = Grid((8192,), (1, 4, 256), (8192,))
    assert gate(cells, smaller).comparisons == 2 * 4 + 1


def test_the_same_cell_has_the_same_tolerance_however_few_are_run() -> None:
    """Nothing but the declared grid and the baseline goes into it."""
    assert gate().tolerance(ITL, CELL, 0.003) == gate().tolerance(ITL, CELL, 0.003)


def test_a_larger_grid_needs_a_wider_tolerance() -> None:
    """More comparisons, more chances of a false alarm."""
    few = gate(gate(runs=5).cells, Grid((16384,), (16,), ())).tolerance(ITL, CELL, 0.01)
    many = gate().tolerance(ITL, CELL, 0.01)
    assert few.fraction is not None
    assert many.fraction is not None
    assert few.fraction < many.fraction
    assert sidak(0.01, 51) < sidak(0.01, 4)


def test_a_window_that_does_not_know_its_error_is_only_observed() -> None:
    """Too few batches: no tolerance, and the reason."""
    found = gate().tolerance(TOK_S, CELL, None)
    assert (found.gated, found.fraction) == (False, None)
    assert "too short" in found.why


def test_prefill_is_judged_without_a_window_error() -> None:
    """Its few samples have none; the spread between runs does the work."""
    assert gate().tolerance(METRICS["prefill_tok_s"], PREFILL, None).gated


def test_noise_beyond_the_limit_is_observed_not_gated() -> None:
    """30 % for ITL, 75 % for TTFT; the tolerance is still shown."""
    noisy = gate(noise=0.06)
    itl, ttft = noisy.tolerance(ITL, CELL, 0.003), noisy.tolerance(TTFT, CELL, 0.0)
    assert not itl.gated
    assert itl.fraction is not None
    assert itl.fraction > 0.30
    assert "30%" in itl.why
    assert ttft.gated


def test_weak_is_said_of_fewer_than_three_runs() -> None:
    """Shipped profiles have one."""
    weak = gate(runs=1).tolerance(ITL, CELL, 0.003)
    assert (weak.weak, weak.gated) == (True, True)
    assert weak.fraction is not None
    assert weak.fraction > 0.10
    assert not gate(runs=3).tolerance(ITL, CELL, 0.003).weak


@pytest.mark.parametrize("gated", [True, False])
def test_ttft_is_gated_in_decode_and_not_in_prefill(gated: bool) -> None:
    """Prefill's TTFT is its tok/s once more."""
    assert gate().gates(TTFT, CELL if gated else PREFILL) is gated
    assert gate(gate=("ttft_ms",)).gates(TTFT, PREFILL)


def test_overrides_replace_noise_floor_and_limit() -> None:
    """Of a metric, or of a metric in one cell, which counts first."""
    told = gate(tolerances={"itl_ms": 0.3, "itl_ms@decode[16K-c16]": 0.01}, noise=0.04)
    assert told.tolerance(ITL, CELL, None).fraction == 0.01
    other = told.tolerance(ITL, Cell("decode", 8192, 16), None)
    assert (other.fraction, other.gated) == (0.3, True)


def test_the_users_tolerance_goes_before_the_profiles() -> None:
    """For the same key; a cell's own, wherever it stands, goes before a metric's."""
    told = gate(
        tolerances={"itl_ms": 0.3, "ttft_ms": 0.5},
        of_profile={"itl_ms": 0.2, "ttft_ms@decode[16K-c16]": 0.4},
    )
    assert told.tolerance(ITL, CELL, None).fraction == 0.3
    assert told.tolerance(TTFT, CELL, None).fraction == 0.4
