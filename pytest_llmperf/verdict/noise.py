"""How much a metric moves when nothing changed: between runs, and within this window. Pure.

Elementwise on arrays with any leading axes, so that the judging of one cell and a simulation of
thousands of matrices call the same functions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_llmperf.baseline.schema import ENOUGH_RUNS
from pytest_llmperf.model.metrics import Metric
from pytest_llmperf.stats.distributions import (
    Array,
    digamma,
    normal_quantile,
    t_quantile,
    trigamma,
    trigamma_inverse,
)

_LEAST_VARIANCE = 1e-12
"""Of logs; a millionth is what six stored digits resolve."""


def fit_spread(values: Array, groups: ArrayLike) -> tuple[Array, Array]:
    """Between-run variance of the logs of one metric, with its degrees of freedom, per cell.

    The cells of a group share one variance, pooled over those with two runs or more, and shrunk
    towards that of all groups. A group without such a cell gets the prior of the others; without
    any other, NaN and 0 degrees.

    Args:
        values: (..., cells, runs), positive, NaN where a run lacks the cell.
        groups: (cells,) labels of cells that are alike: their concurrency.
    """
    logs = np.log(values)
    known = np.isfinite(logs)
    n = known.sum(axis=-1)
    means = np.where(known, logs, 0).sum(axis=-1) / np.maximum(n, 1)
    squares = np.where(known, (logs - means[..., None]) ** 2, 0).sum(axis=-1)
    cell_df = np.maximum(n - 1, 0)

    labels, index = np.unique(np.asarray(groups), return_inverse=True)
    member = (index[:, None] == np.arange(labels.size)).astype(float)
    df = cell_df @ member
    pooled = (squares @ member) / np.maximum(df, 1)
    variances, df = _moderate(np.maximum(pooled, _LEAST_VARIANCE), df)
    return variances[..., index], df[..., index]


def _moderate(variances: Array, df: Array) -> tuple[Array, Array]:
    """Shrink the variances (..., groups) towards each other as far as they are alike.

    Empirical Bayes of Smyth 2004 (Stat. Appl. Genet. Mol. Biol. 3, section 6.2): the spread of
    the log variances beyond their sampling error says how many degrees of freedom the common
    value is worth; at most, as in limma, those of all groups together.
    """
    known = df > 0
    groups = known.sum(axis=-1, keepdims=True)
    all_df = df.sum(axis=-1, keepdims=True)
    half = np.where(known, df, 1) / 2
    z = np.where(known, np.log(variances) - digamma(half) + np.log(half), 0)
    mean = z.sum(axis=-1, keepdims=True) / np.maximum(groups, 1)
    spread = np.where(known, (z - mean) ** 2, 0).sum(axis=-1, keepdims=True)
    sampling = np.where(known, trigamma(half), 0).sum(axis=-1, keepdims=True)
    excess = spread / np.maximum(groups - 1, 1) - sampling / np.maximum(groups, 1)
    # below this they are as good as equal, and the cap holds anyway
    prior_df = np.minimum(2 * trigamma_inverse(np.maximum(excess, 1e-4)), all_df)
    prior_df = np.where(groups > 1, prior_df, 0)
    half = np.maximum(prior_df, 1) / 2
    prior = np.exp(mean + digamma(half) - np.log(half))
    with np.errstate(invalid="ignore"):
        moderated = (prior_df * prior + df * variances) / (prior_df + df)
    return moderated, np.minimum(prior_df + df, all_df)


def quantile(tail: float, df: ArrayLike) -> Array:
    """Student's q for a variance with ``df`` degrees of freedom; the normal one where it has none.

    Without repeated runs only the window's own error is left to judge by.
    """
    df = np.asarray(df, float)
    return np.where(df > 0, t_quantile(tail, np.maximum(df, 1)), normal_quantile(tail))


def tolerance(
    metric: Metric,
    q: ArrayLike,
    variance: ArrayLike,
    n: ArrayLike,
    error: ArrayLike,
    baseline: ArrayLike,
) -> tuple[Array, Array]:
    """How far a metric may move: by chance alone, and with the floor. Fractions of the baseline.

    Args:
        metric: gives the direction, the floors, and the least tolerance with too few runs.
        q: of ``quantile``, for the chance of a false alarm that this one comparison may have.
        variance: s^2, between runs, of logs; 0 where no run was repeated.
        n: runs in the baseline.
        error: SE, standard error of the window's own estimate, relative.
        baseline: the median of the runs, in the metric's unit.
    """
    n = np.asarray(n, float)
    chance = fraction_worse(metric, noise(q, variance, n, error))
    chance = np.where(n < ENOUGH_RUNS, np.maximum(chance, metric.weak), chance)
    return chance, np.maximum(chance, floor_of(metric, baseline))


def floor_of(metric: Metric, baseline: ArrayLike) -> Array:
    """The smallest change of one cell that is ever called one, as a fraction of the baseline."""
    return np.maximum(metric.floor, metric.floor_abs / np.asarray(baseline))


def beyond(measured: ArrayLike, baseline: ArrayLike, limit: ArrayLike) -> NDArray[np.bool_]:
    """Whether a value moved by more than a fraction of its baseline, either way."""
    return np.asarray(~(np.abs(np.asarray(measured) / np.asarray(baseline) - 1) <= limit))


def noise(q: ArrayLike, variance: ArrayLike, n: ArrayLike, error: ArrayLike) -> Array:
    """Largest change of a log that chance explains: of a window against the median of ``n`` runs.

    ``q sqrt(s^2 (1 + pi / 2n) + SE^2)``; pi / 2n is the variance of a median in that of a value.

    Args:
        q: of ``quantile``.
        variance: s^2, between runs, of logs.
        n: runs in the baseline.
        error: SE, standard error of the window's own estimate, relative.
    """
    between = np.asarray(variance) * (1 + math.pi / (2 * np.asarray(n, float)))
    return np.asarray(q * np.sqrt(between + np.square(error)))


def fraction_worse(metric: Metric, log_change: ArrayLike) -> Array:
    """A change of a log towards worse as a fraction of the baseline: what delta is measured in."""
    if metric.better == "higher":
        return np.asarray(-np.expm1(-np.asarray(log_change)))
    return np.asarray(np.expm1(log_change))
