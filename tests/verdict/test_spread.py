"""The noise model: what the runs of a baseline tell, against worlds of known noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.stats.distributions import t_quantile
from pytest_llmperf.verdict.spread import (
    CELL_DF,
    Spread,
    expected_spread,
    fit,
    neumann_df,
    successive,
    weighted_median,
)

CONCURRENCY = np.tile([1, 2, 4, 8, 16, 32, 64, 128], 5)
CONTEXT = np.repeat(np.arange(5), 8)
PRIOR = expected_spread(METRICS["steps_s"], CONCURRENCY, np.zeros(40, bool))


def world(
    runs: int, own: float = 0.01, shared: float = 0.0, matrices: int = 200, seed: int = 1
) -> Spread:
    """The fit to matrices whose noise is known."""
    rng = np.random.default_rng(seed)
    logs = own * rng.standard_normal((matrices, 40, runs))
    logs = logs + shared * rng.standard_normal((matrices, 1, runs))
    return fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR)


def test_the_prior_is_all_there_is_of_one_run() -> None:
    """1.5 %, twice that at one and two streams, of which a part is the run's."""
    spread = world(1)
    assert np.sqrt(spread.cell[0, 2] + spread.run[0]) == pytest.approx(0.015, rel=0.05)
    assert np.sqrt(spread.cell[0, 0]) == pytest.approx(2 * np.sqrt(spread.cell[0, 2]))
    assert (spread.cell_df == CELL_DF).all()


@pytest.mark.parametrize("own", [0.01, 0.03])
def test_runs_overrule_the_prior(own: float) -> None:
    """With ten runs the residual is what it is, above the prior and below."""
    seen = np.sqrt(np.median(world(10, own).cell[:, 2:8]))
    assert seen == pytest.approx(own, rel=0.12)


def test_what_a_run_does_to_all_cells_is_not_in_the_residual() -> None:
    """5 % shared, 1 % of each cell's own."""
    spread = world(5, shared=0.05)
    assert np.sqrt(np.median(spread.cell)) < 0.015
    mean, _ = spread.of_mean(1 / spread.cell)
    assert np.sqrt(np.median(mean)) > 0.03


def test_a_steady_creep_is_hardly_noise() -> None:
    """1 % a run over ten runs: the plain spread would be 3 %."""
    logs = np.broadcast_to(0.01 * np.arange(10), (40, 10))
    spread = fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR)
    mean, _ = spread.of_mean(1 / spread.cell)
    assert np.sqrt(mean) < 0.009


def test_cells_that_move_together_are_fewer_witnesses() -> None:
    """The same variance, but shared within each concurrency: fewer degrees of freedom."""
    rng = np.random.default_rng(3)
    alike = np.tile(0.012 * rng.standard_normal((100, 8, 10)), (1, 5, 1))
    apart = 0.012 * rng.standard_normal((100, 40, 10))
    together, single = (
        fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR) for logs in (alike, apart)
    )
    assert np.median(together.cell_df) < 0.75 * np.median(single.cell_df)


def test_one_bad_run_of_five_does_not_hide_a_shift_of_all_cells() -> None:
    """20 % slow as a whole: what the others say of runs counts."""
    rng = np.random.default_rng(4)
    logs = 0.01 * rng.standard_normal((100, 40, 5))
    logs[..., 2] += 0.2
    spread = fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR)
    mean, _ = spread.of_mean(1 / spread.cell)
    assert np.sqrt(np.median(mean)) < 0.012


def test_two_bad_runs_of_five_are_noise() -> None:
    """Then it is how this server starts."""
    rng = np.random.default_rng(4)
    logs = 0.01 * rng.standard_normal((100, 40, 5))
    logs[..., [1, 3]] += 0.2
    spread = fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR)
    mean, _ = spread.of_mean(1 / spread.cell)
    assert np.sqrt(np.median(mean)) > 0.08


def test_a_few_cells_keep_what_they_share() -> None:
    """Four cells cannot tell a run's effect from their own: it stays in the residual."""
    rng = np.random.default_rng(5)
    logs = 0.03 * rng.standard_normal((200, 1, 10)) + np.zeros((200, 4, 10))
    spread = fit(np.diff(logs, axis=-1), [4, 8, 16, 32], [1, 1, 1, 1], PRIOR[2:6])
    assert np.sqrt(np.median(spread.cell)) > 0.02
    assert (spread.run == 0).all()


@pytest.mark.parametrize("cells", [1, 2, 4])
def test_one_bad_run_of_five_does_not_hide_a_change_of_few_cells(cells: int) -> None:
    """20 % slow as a whole: the others tell the noise, by one difference less."""
    logs = 0.01 * np.random.default_rng(8).standard_normal((200, cells, 5))
    sound = _fit_few(logs)
    logs[..., 2] += 0.2
    spread = _fit_few(logs)
    assert np.sqrt(np.median(spread.cell)) < 0.016
    assert np.median(spread.cell_df) < np.median(sound.cell_df)


def test_two_bad_runs_of_few_cells_are_noise() -> None:
    """Then it is how this server starts; nor is a run left out that one of the cells lacks."""
    logs = 0.01 * np.random.default_rng(9).standard_normal((200, 4, 5))
    logs[..., 2] += 0.2
    lacking = logs.copy()
    lacking[:, 0, 4] = np.nan
    logs[..., 4] += 0.2
    for some in (logs, lacking):
        assert np.sqrt(np.median(_fit_few(some).cell)) > 0.06


def _fit_few(logs: NDArray[np.float64]) -> Spread:
    """Of one context, from 4 streams on."""
    cells = logs.shape[-2]
    return fit(np.diff(logs, axis=-1), [4, 8, 16, 32][:cells], [1] * cells, PRIOR[2 : 2 + cells])


def test_no_difference_is_taken_over_a_change_of_level() -> None:
    """Nor from a run that is missing; the next one known is compared with the last one known."""
    logs = np.array([[1.0, 2.0, 5.0, 7.0], [1.0, np.nan, 4.0, 5.0]])
    steps = successive(logs, [[0, 0, 1, 1], [0, 0, 0, 0]])
    assert steps.tolist()[0] == pytest.approx([1.0, np.nan, 2.0], nan_ok=True)
    assert steps.tolist()[1] == pytest.approx([np.nan, 3.0, 1.0], nan_ok=True)


def test_text_moves_what_it_moves_and_only_under_speculation() -> None:
    """tok/s at one stream; neither steps/s nor a server without draft tokens."""
    tok_s, steps = METRICS["total_tok_s"], METRICS["steps_s"]
    assert expected_spread(tok_s, [1], [True])[0] > 0.2
    assert expected_spread(tok_s, [1], [False])[0] == pytest.approx(0.03)
    assert expected_spread(steps, [1], [True])[0] == pytest.approx(0.03)


def test_successive_differences_are_worth_what_neumann_says() -> None:
    """By the spread of simulated variances: 2 / df is their relative variance."""
    rng = np.random.default_rng(6)
    for steps in (1, 4, 9):
        runs = rng.standard_normal((100_000, steps + 1))
        variances = np.square(np.diff(runs, axis=1)).mean(axis=1) / 2
        assert 2 / variances.var() == pytest.approx(float(neumann_df(steps)), rel=0.05)


def test_the_weighted_median_leaves_nan_out_and_halves_a_tie() -> None:
    """As the plain median where weights are equal."""
    assert weighted_median(np.array([3.0, 1.0, np.nan, 2.0]), np.ones(4)) == 2.0
    assert weighted_median(np.array([1.0, 3.0]), np.ones(2)) == 2.0
    assert weighted_median(np.array([1.0, 3.0, 9.0]), np.array([1.0, 1.0, 5.0])) == 9.0
    assert np.isnan(weighted_median(np.array([np.nan]), np.ones(1)))


def test_identical_runs_do_not_divide_by_zero() -> None:
    """Rounded figures can agree to the last digit."""
    spread = fit(np.zeros((40, 2)), CONCURRENCY, CONTEXT, PRIOR)
    assert np.isfinite(spread.cell).all()
    assert (spread.cell > 0).all()


def test_a_bad_run_is_not_left_out_of_three() -> None:
    """Two earlier runs lack the metric: what is known are three, of which none is one too many."""
    logs = np.full((40, 5), np.nan)
    logs[:, 2:] = 0.01 * np.random.default_rng(7).standard_normal((40, 3))
    logs[:, 3] += 0.1
    spread = fit(successive(logs, np.zeros((40, 5), int)), CONCURRENCY, CONTEXT, PRIOR)
    mean, _ = spread.of_mean(1 / spread.cell)
    assert np.sqrt(mean) > 0.03


def test_two_runs_that_lie_apart_leave_a_half_to_be_seen() -> None:
    """5 % as a whole: the tolerance of all cells stays below 40 %."""
    logs = np.repeat([[0.0, 0.05]], 40, axis=0)
    spread = fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, PRIOR)
    variance, df = spread.of_mean(1 / spread.cell)
    assert float(t_quantile(1e-3, df) * np.sqrt(variance * 1.5)) < 0.4
