"""Tolerances from the noise of runs: of a cell by itself, and among the others of its run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.stats.distributions import t_quantile
from pytest_llmperf.verdict import noise

TOK_S, ITL, TTFT = METRICS["total_tok_s"], METRICS["itl_ms"], METRICS["ttft_ms"]


def test_the_variance_of_a_median_is_that_of_simulated_ones() -> None:
    """1 to 5 normal values, and the limit for many."""
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 4, 5):
        seen = np.median(rng.standard_normal((200_000, n)), axis=1).var()
        assert float(noise.median_variance(n)) == pytest.approx(seen, rel=0.02)
    assert float(noise.median_variance(100)) == pytest.approx(math.pi / 200)


def test_the_windows_error_counts_once() -> None:
    """Stored runs have it in their spread already: the larger of the two holds."""
    assert float(noise.own_variance(4e-4, 5, 0.01)) == pytest.approx(4e-4 * 1.2868)
    wide = float(noise.own_variance(4e-4, 5, 0.05))
    assert wide == pytest.approx(0.05**2 + 4e-4 * 0.2868)


def test_alone_a_cell_bears_the_runs_effect_and_its_own() -> None:
    """q of the joint degrees of freedom, by the formula in its docstring."""
    limit = float(noise.alone(1e-4, (1e-4, 20.0), (5e-5, 10.0), 5, 0.0))
    own, shared = 1e-4 * 1.2868, 5e-5 * 1.2868
    df = (own + shared) ** 2 / (shared**2 / 10 + own**2 / 20)
    assert limit == pytest.approx(float(t_quantile(1e-4, df)) * math.sqrt(own + shared))


def test_among_others_the_shift_of_the_run_is_taken_out() -> None:
    """What all cells lost is not this cell's; how sure that shift is goes into the limit."""
    calm = float(noise.among(1e-4, (1e-4, 30.0), 5, 0.0, (0.0, 0.0)))
    slow = float(noise.among(1e-4, (1e-4, 30.0), 5, 0.0, (0.02, 0.0)))
    unsure = float(noise.among(1e-4, (1e-4, 30.0), 5, 0.0, (0.0, 1e-4)))
    assert slow == pytest.approx(calm + 0.02)
    assert unsure > calm


def test_the_shift_of_a_run_is_robust_to_some_cells_that_got_worse() -> None:
    """Three of eight fell by 20 %; the run itself was 1 % slow."""
    changes = np.array([0.01, 0.009, 0.011, 0.01, 0.0105, 0.2, 0.21, 0.22])
    shift, variance = noise.common_shift(changes, np.full(8, 1e-4))
    assert float(shift) == pytest.approx(0.0105, abs=0.001)
    assert float(variance) == pytest.approx(math.pi / 2 * 1e-4 / 8)


def test_a_few_cells_are_no_company() -> None:
    """Fewer than five cannot tell a run's shift from their own."""
    shift, variance = noise.common_shift(np.array([0.1, 0.1, 0.1, 0.1]), np.full(4, 1e-4))
    assert (float(shift), math.isinf(float(variance))) == (0.0, True)


def test_a_change_of_a_log_is_the_fraction_that_delta_is_measured_in() -> None:
    """A fall of tok/s and a rise of ITL."""
    assert float(noise.fraction_worse(TOK_S, math.log(1 / 0.9))) == pytest.approx(0.1)
    assert float(noise.fraction_worse(ITL, math.log(1.1))) == pytest.approx(0.1)


def test_the_floor_in_milliseconds_counts_where_it_is_wider() -> None:
    """20 ms of a TTFT of 50 ms, 15 % of one of 1,000 ms."""
    assert float(noise.floor_of(TTFT, 50.0)) == pytest.approx(0.4)
    assert float(noise.floor_of(TTFT, 1000.0)) == pytest.approx(0.15)


def test_beyond_is_false_for_nothing_but_a_value_within() -> None:
    """NaN is beyond everything: it is never a pass."""
    assert not noise.beyond(97.1, 100.0, 0.03)
    assert noise.beyond(96.9, 100.0, 0.03)
    assert noise.beyond(math.nan, 100.0, 0.03)
