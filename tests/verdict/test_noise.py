"""The noise model: pooled and moderated spread, and the tolerance it gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.stats.distributions import t_quantile
from pytest_llmperf.verdict.noise import beyond, fit_spread, noise, quantile, tolerance

TOK_S, ITL, TTFT = METRICS["total_tok_s"], METRICS["itl_ms"], METRICS["ttft_ms"]


def table(scales: list[float], per_group: int, runs: int, seed: int = 0) -> tuple[object, object]:
    """Log-normal values, one group of cells per scale."""
    rng = np.random.default_rng(seed)
    scale = np.repeat(scales, per_group)[:, None]
    values = 100 * np.exp(scale * rng.standard_normal((scale.size, runs)))
    return values, np.repeat(np.arange(len(scales)), per_group)


def test_groups_of_different_noise_keep_it_apart() -> None:
    """Single streams three times as noisy as the rest stay so, within their sampling error."""
    values, groups = table([0.03, 0.01, 0.01, 0.01], per_group=10, runs=5)
    spread = np.sqrt(fit_spread(values, groups)[0])
    assert spread[0] == pytest.approx(0.03, rel=0.25)
    assert spread[10:] == pytest.approx(0.01, rel=0.25)


def test_groups_that_are_alike_lend_each_other_certainty() -> None:
    """With equal noise the spread is shared, so that q falls well below a lone group's."""
    values, groups = table([0.01] * 8, per_group=5, runs=5, seed=3)
    _, df = fit_spread(values, groups)
    _, alone = fit_spread(values[:5], groups[:5])
    assert alone == pytest.approx(20)
    assert (df > 60).all()
    assert (df <= 160).all()


def test_all_cells_of_a_group_share_one_spread() -> None:
    """A cell that happened to repeat itself exactly gets no tolerance of zero."""
    values, groups = table([0.01, 0.01], per_group=4, runs=5)
    values[0] = 100.0
    variance, _ = fit_spread(values, groups)
    assert variance[0] == variance[3] > 0


def test_a_group_without_repeats_borrows_the_others_spread() -> None:
    """A new concurrency with a single run takes what the profile knows, and is less sure of it."""
    values, groups = table([0.008, 0.01, 0.013], per_group=10, runs=5)
    values[20:, 1:] = np.nan
    variance, df = fit_spread(values, groups)
    assert np.sqrt(variance[20]) == pytest.approx(0.009, rel=0.3)
    assert 0 < df[20] < df[0]


def test_without_any_repeat_there_is_no_spread() -> None:
    """One run, as in the shipped profiles: no degrees of freedom, and no warning on the way."""
    variance, df = fit_spread(np.array([[100.0], [200.0]]), [1, 2])
    assert (df == 0).all()
    assert np.isnan(variance).all()


def test_identical_runs_do_not_divide_by_zero() -> None:
    """Rounded figures can agree to the last digit."""
    variance, df = fit_spread(np.full((6, 3), 6.3), [1, 1, 2, 2, 4, 4])
    assert np.sqrt(variance) == pytest.approx(0.0, abs=2e-6)
    assert np.isfinite(df).all()


def test_spreads_of_many_matrices_at_once_are_those_of_each() -> None:
    """A leading axis changes nothing."""
    one, groups = table([0.02, 0.01, 0.01], per_group=3, runs=4, seed=1)
    two, _ = table([0.02, 0.01, 0.01], per_group=3, runs=4, seed=2)
    together = fit_spread(np.stack([one, two]), groups)
    for i, alone in enumerate((one, two)):
        variance, df = fit_spread(alone, groups)
        assert together[0][i] == pytest.approx(variance)
        assert together[1][i] == pytest.approx(df)


def test_noise_is_the_stated_formula() -> None:
    """q sqrt(s^2 (1 + pi / 2n) + SE^2), by hand."""
    by_hand = 4.0 * math.sqrt(0.01**2 * (1 + math.pi / 10) + 0.005**2)
    assert float(noise(4.0, 0.01**2, 5, 0.005)) == pytest.approx(by_hand)


def test_tolerance_follows_the_metrics_own_direction() -> None:
    """A fall of the log by x is 1 - exp(-x) of the baseline, a rise exp(x) - 1."""
    x = float(noise(t_quantile(1e-4, 20), 0.02**2, 5, 0.005))
    down, up = (
        float(tolerance(metric, quantile(1e-4, 20), 0.02**2, 5, 0.005, 100.0)[0])
        for metric in (TOK_S, ITL)
    )
    assert down == pytest.approx(1 - math.exp(-x))
    assert up == pytest.approx(math.exp(x) - 1)


def test_no_tolerance_is_below_the_floor() -> None:
    """Without any noise: 3 % of tok/s; of TTFT 15 % or 20 ms, whichever is wider."""
    assert float(tolerance(TOK_S, 4.0, 1e-12, 5, 0.0, 100.0)[1]) == 0.03
    assert float(tolerance(TTFT, 4.0, 1e-12, 5, 0.0, 400.0)[1]) == 0.15
    assert float(tolerance(TTFT, 4.0, 1e-12, 5, 0.0, 80.0)[1]) == 0.25


@pytest.mark.parametrize("runs", [1, 2])
def test_fewer_than_three_runs_get_the_stated_default(runs: int) -> None:
    """It takes the place of a smaller noise, and not of a larger one."""
    assert float(tolerance(TOK_S, 5.0, 0.001**2, runs, 0.001, 100.0)[1]) == 0.07
    assert float(tolerance(TOK_S, 5.0, 0.03**2, runs, 0.001, 100.0)[1]) > 0.1


def test_a_window_without_a_baselines_spread_is_judged_by_its_own_error() -> None:
    """One run: q is the normal quantile, s is unknown."""
    chance, _ = tolerance(ITL, quantile(8.375e-5, 0.0), 0.0, 1, 0.05, 10.0)
    assert float(chance) == pytest.approx(math.expm1(3.7636 * 0.05), rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_beyond_every_limit(value: float) -> None:
    """A comparison with NaN must not read as agreement."""
    assert bool(beyond(value, 100.0, 0.5))
    assert bool(beyond(100.0, 100.0, math.nan))
    assert not bool(beyond(100.0, 100.0, 0.5))
