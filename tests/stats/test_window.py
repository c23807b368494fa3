"""Standard errors of a window against simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.stats import (
    batch_count,
    batch_mean_error,
    chunk_error,
    confidence_95,
    itl_error,
    median_error,
    trend,
)


def test_batch_means_know_the_error_of_correlated_bins() -> None:
    """Bins that depend on each other: the naive error is far too small, that of batches right."""
    rng = np.random.default_rng(1)
    shocks = rng.standard_normal((400, 3000))
    bins = np.empty_like(shocks)
    bins[:, 0] = shocks[:, 0] / math.sqrt(1 - 0.8**2)
    for i in range(1, 3000):
        bins[:, i] = 0.8 * bins[:, i - 1] + shocks[:, i]
    bins += 100
    true = (bins.mean(axis=1) / 0.01).std()
    naive = np.mean(bins.std(axis=1) / math.sqrt(3000) / 0.01)
    known = [batch_mean_error(row, 0.01, 0.01) for row in bins]
    assert naive < 0.4 * true
    assert np.mean([k for k in known if k is not None]) == pytest.approx(true, rel=0.1)


def test_a_window_of_fewer_than_eight_batches_of_five_steps_has_no_error() -> None:
    """40 steps are needed, whatever the bins."""
    assert batch_mean_error(np.full(300, 4.0), 0.01, 0.0752) is None
    assert batch_mean_error(np.full(300, 4.0), 0.01, 0.0740) == 0.0
    assert batch_mean_error([], 0.01, 0.01) is None


def test_batches_are_whole_bins_of_five_steps_and_at_most_thirty() -> None:
    """Five steps of 50 ms are 250 ms: three bins of 100 ms make a batch."""
    assert batch_count(bins=30, bin_s=0.1, step_s=0.05) == 10
    assert batch_count(bins=23, bin_s=0.1, step_s=0.05) == 0
    assert batch_count(bins=30_000, bin_s=0.1, step_s=0.05) == 30
    assert batch_count(bins=30, bin_s=0.1, step_s=0.0) == 0


def test_chunks_know_the_error_that_few_batches_only_guess() -> None:
    """Eight streams of 40 speculative steps: both are right on average, one of them every time."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 6, (400, 8, 40)).astype(float)
    rates = sizes.mean(axis=(1, 2))
    true = rates.std() / rates.mean()
    by_chunks = np.array([chunk_error(window.ravel(), np.ones(320)) for window in sizes])
    by_batches = [batch_mean_error(window.sum(axis=0), 1.0, 1.0) for window in sizes]
    relative = np.array([error or 0.0 for error in by_batches]) / (8 * rates)
    assert by_chunks.mean() == pytest.approx(true, rel=0.1)
    assert by_chunks.min() > 0.85 * true
    assert relative.min() < 0.5 * true
    assert chunk_error(np.full(300, 4.0), np.ones(300)) == chunk_error([7.0], [1.0]) == 0.0
    assert chunk_error([], []) == 0.0


def test_chunks_that_are_read_together_are_no_larger_chunks() -> None:
    """A proxy, say, that hands on some at once: what the chunks hold is as sure as before."""
    rng = np.random.default_rng(6)
    sizes = rng.integers(1, 6, 20_000).astype(float)
    starts = np.flatnonzero(rng.random(sizes.size) < 0.2)
    tokens, chunks = np.add.reduceat(sizes, starts), np.diff(starts, append=sizes.size)
    alone = chunk_error(sizes, np.ones(sizes.size))
    assert chunk_error(tokens, chunks) == pytest.approx(alone, rel=0.05)
    assert chunk_error(chunks, chunks) == 0.0


def test_cut_steps_hide_little_of_a_batch_error() -> None:
    """Steps that yield 1 to 5 tokens, cut at the borders of the shortest batches there are."""
    rng = np.random.default_rng(3)
    grid = np.arange(0, 4001) / 100
    rates, errors = [], []
    for _ in range(400):
        edges = np.concatenate([[-rng.random()], np.cumsum(np.ones(45))])
        curve = np.concatenate([[0], np.cumsum(rng.integers(1, 6, 45))])
        bins = np.diff(np.interp(grid, edges, curve))
        rates.append(bins.mean() / 0.01)
        errors.append(batch_mean_error(bins, 0.01, 1.0))
    known = [error for error in errors if error is not None]
    assert len(known) == 400
    assert np.mean(known) == pytest.approx(np.std(rates), rel=0.1)


def test_batch_mean_error_is_in_tokens_per_second() -> None:
    """The same tokens in half the time: twice the rate and twice its error."""
    tokens = np.random.default_rng(2).poisson(10, 400)
    slow, fast = batch_mean_error(tokens, 0.1, 0.02), batch_mean_error(tokens, 0.05, 0.01)
    assert slow is not None
    assert fast == pytest.approx(2 * slow)


@pytest.mark.parametrize("n", [2, 3, 5, 9, 40, 1100])
def test_median_error_is_that_of_the_median(n: int) -> None:
    """On average the spread of medians over samples, and for a handful up to a fifth above it."""
    samples = np.random.default_rng(n).standard_normal((1000, n))
    errors = [error for row in samples if (error := median_error(row)) is not None]
    assert 0.95 < np.mean(errors) / np.median(samples, axis=1).std() < 1.2


def test_one_value_has_no_error() -> None:
    """What was seen once may be anything."""
    assert median_error([3.0]) is None
    assert median_error([]) is None


def test_itl_error_is_the_wider_of_time_and_requests() -> None:
    """One stream has only time; many that differ have more than time shows."""
    over_time = 10 * 0.02
    assert itl_error(10.0, [10.0], 0.02) == pytest.approx(over_time)
    assert itl_error(10.0, [10.0, 10.0, 10.0], 0.02) == pytest.approx(over_time)
    assert itl_error(10.0, [5.0, 10.0, 15.0], 0.02) == median_error([5.0, 10.0, 15.0])
    assert itl_error(10.0, [5.0, 10.0, 15.0], None) is None


@pytest.mark.parametrize(("shared", "own"), [(0.01, 0.0), (0.0, 0.03), (0.01, 0.01)])
def test_itl_error_is_what_windows_scatter_by(shared: float, own: float) -> None:
    """Windows of 32 requests that step together, and differ from each other: the stated error is
    that of the median over requests, neither 0.85 nor 1.35 times it."""
    rng = np.random.default_rng(2)
    common = 1 + shared * rng.standard_normal((2000, 1))
    requests = 10 * common * (1 + own * rng.standard_normal((2000, 32)))
    rate_error = math.hypot(shared, own / math.sqrt(32))
    scatter = np.median(requests, axis=1).std()
    stated = np.mean([itl_error(10.0, row, rate_error) for row in requests])
    assert 0.85 * scatter < stated < 1.35 * scatter


def test_trend_sees_a_step_between_the_halves() -> None:
    """Ten per cent down at the middle, with a little noise."""
    noise = np.random.default_rng(3).standard_normal(20)
    found = trend(np.r_[np.full(10, 100.0), np.full(10, 90.0)] + noise)
    assert found is not None
    assert found.change == pytest.approx(-0.1, abs=0.02)
    assert found.sigmas < -10


def test_trend_of_a_steady_series_is_nothing() -> None:
    """No change, not a division by zero; and too few values are no answer."""
    steady = trend(np.full(8, 5.0))
    assert steady is not None
    assert (steady.change, steady.sigmas) == (0.0, 0.0)
    assert trend(np.full(7, 5.0)) is None
    assert trend(np.zeros(8)) is None


def test_confidence_interval_uses_students_t() -> None:
    """Ten batches, nine degrees of freedom: 2.262 standard errors either way."""
    assert confidence_95(100.0, 2.0, 9) == pytest.approx((95.4757, 104.5243), abs=1e-3)
