"""Standard errors of what one measuring window estimated. Units follow their inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pytest_llmperf.stats.distributions import normal_quantile, t_quantile

MIN_BATCHES = 8
STEPS_PER_BATCH = 5
"""Interpolation cuts one step at each border of a batch, which hides 1 / (3 x 5) of its variance:
3 % of the error. Ten would leave a 30 s window of 68 steps of 440 ms, as a report has, without an
error, and its cell without a gate."""
MAX_BATCHES = 30
"""More, shorter batches would only bring back the correlation that batching is there to remove."""


def batch_count(bins: int, bin_s: float, step_s: float) -> int:
    """How many batches a window of ``bins`` bins yields for decoding steps of ``step_s`` seconds.

    Batches are whole bins of at least 5 steps; 0 when there would be fewer than 8.
    """
    if not (bins > 0 and bin_s > 0 and step_s > 0):
        return 0
    least = max(1, math.ceil(STEPS_PER_BATCH * step_s / bin_s - 1e-9))
    count = min(bins // least, MAX_BATCHES)
    return count if count >= MIN_BATCHES else 0


def batch_mean_error(tokens_per_bin: ArrayLike, bin_s: float, step_s: float) -> float | None:
    """Standard error of the window's rate in tok/s, by non-overlapping batch means.

    The spread of the means of consecutive batches, each long against the steps that correlate
    its bins (Schmeiser 1982, Operations Research 30: 10 to 30 batches are enough). Bins left over
    by the division are dropped from the window's start. None when there are fewer than 8 batches
    of 5 steps: the window is too short to know its own error.
    """
    tokens = np.asarray(tokens_per_bin, float)
    count = batch_count(tokens.size, bin_s, step_s)
    if count == 0:
        return None
    length = tokens.size // count
    rates = tokens[-count * length :].reshape(count, length).mean(axis=1) / bin_s
    return float(rates.std(ddof=1) / math.sqrt(count))


def chunk_error(tokens: ArrayLike, chunks: ArrayLike) -> float:
    """Relative standard error of the sum of ``tokens``, for independent chunks; 0 for one read.

    What speculative decoding gives a step differs from step to step and from stream to stream:
    hundreds of chunks show that spread more surely than eight batches do. Of each read its tokens
    and its chunks: those read together may have several times the tokens, and it means nothing
    (the error of a ratio estimate; Cochran 1977, Sampling Techniques, chapter 6).
    """
    made, sent = np.asarray(tokens, float), np.asarray(chunks, float)
    total, reads = float(made.sum()), made.size
    if reads < 2 or total <= 0:
        return 0.0
    beside = made - sent * (total / sent.sum())
    return float(np.sqrt(reads / (reads - 1) * np.square(beside).sum()) / total)


def median_error(values: ArrayLike) -> float | None:
    """Standard error of the median of independent values, from their order statistics.

    Price and Bonett 2001 (J. Stat. Comput. Simul. 68): half the width of a distribution-free
    interval around the median over the normal quantile of its exact binomial coverage. None for
    fewer than two values.
    """
    ordered = np.sort(np.asarray(values, float))
    n = ordered.size
    if n < 2:
        return None
    rank = max(1, round((n + 1) / 2 - math.sqrt(n)))
    # log of the binomial terms: 2**n overflows from 1,024 values on
    log_terms = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(rank)
    ]
    z = normal_quantile(math.fsum(math.exp(term) for term in log_terms))
    return float((ordered[n - rank] - ordered[rank - 1]) / (2 * z))


def itl_error(
    itl_ms: float, per_request_ms: ArrayLike, relative_rate_error: float | None
) -> float | None:
    """Standard error of a cell's ITL in ms: the larger of two views of it.

    The window's wandering over time, which the batch means of the token rate show
    (``batch_mean_error / total_tok_s``) and which all requests share, since they step together;
    and the spread between requests, which lasts over the whole window and time cannot show. None
    where the window was too short for batch means.
    """
    if relative_rate_error is None:
        return None
    over_time = itl_ms * relative_rate_error
    return max(over_time, median_error(per_request_ms) or 0.0)


@dataclass(frozen=True)
class Trend:
    """How the second half of a window compares with its first."""

    change: float
    """Second half's mean over the first's, minus one."""
    sigmas: float
    """The same difference in its own standard errors; 0 where there is no error to tell by."""


def trend(values: ArrayLike) -> Trend | None:
    """Compare the halves of equally spaced values (batch rates, or bins long against a step).

    None for fewer than 8 values, or where the first half has no positive mean.
    """
    series = np.asarray(values, float)
    half = series.size // 2
    if series.size < MIN_BATCHES or series[:half].mean() <= 0:
        return None
    first, second = series[:half], series[-half:]
    gap = float(second.mean() - first.mean())
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / half)
    # a staircase without any noise is as sure as can be
    sigmas = gap / error if error > 0 else math.copysign(math.inf, gap) if gap else 0.0
    return Trend(gap / float(first.mean()), sigmas)


def confidence_95(estimate: float, error: float, df: float) -> tuple[float, float]:
    """The two-sided 95 % interval by Student's t, for an error known from ``df`` + 1 batches."""
    half = float(t_quantile(0.025, df)) * error
    return (estimate - half, estimate + half)
