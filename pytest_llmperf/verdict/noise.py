"""How far a metric may move when nothing changed: tolerances from the noise of runs. Pure.

Elementwise on arrays with any leading axes, see ``spread``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_llmperf.model.metrics import Metric
from pytest_llmperf.stats.distributions import Array, t_quantile
from pytest_llmperf.verdict.spread import weighted_median

COMPANY = 5
"""Other cells of the run from which its common shift can be told."""

_MEDIAN_VARIANCE = np.array([1.0, 0.5, 0.4487, 0.2982, 0.2868])
"""Variance of the median of 1 to 5 normal values in that of one (Godwin 1949, Ann. Math. Stat.
20)."""


def median_variance(n: ArrayLike) -> Array:
    """Variance of the median of n normal values, in that of one."""
    n = np.asarray(n)
    known = _MEDIAN_VARIANCE[np.clip(n, 1, _MEDIAN_VARIANCE.size) - 1]
    many = math.pi / (2 * np.maximum(n, 1))
    return np.asarray(np.where(n <= _MEDIAN_VARIANCE.size, known, many))


def own_variance(cell: ArrayLike, n: ArrayLike, error: ArrayLike) -> Array:
    """Variance of a cell's change beside what its run shares.

    ``max(s^2, SE^2) + s^2 m``: stored runs have the error of their windows in s already, so it
    counts once, by whichever is larger.

    Args:
        cell: s^2, residual variance between runs, of logs.
        n: runs that speak for the level.
        error: SE, standard error of this window's own estimate, relative.
    """
    cell = np.asarray(cell, float)
    return np.asarray(np.maximum(cell, np.square(error)) + cell * median_variance(n))


def alone(
    tail: float,
    cell: tuple[ArrayLike, ArrayLike],
    run: tuple[ArrayLike, ArrayLike],
    n: ArrayLike,
    error: ArrayLike,
) -> Array:
    """Largest change of a log towards worse that chance explains, for a cell by itself.

    ``q sqrt(r^2 (1 + m) + own)``, q Student's t with the degrees of freedom of the sum
    (Satterthwaite 1946, Biometrics Bulletin 2), m of ``median_variance``.

    Args:
        tail: chance that this one comparison is called worse by noise.
        cell: residual variance between runs and its degrees of freedom.
        run: variance of a run's effect, r^2, and its degrees of freedom.
        n: runs that speak for the level.
        error: as in ``own_variance``.
    """
    own = own_variance(cell[0], n, error)
    shared = np.asarray(run[0]) * (1 + median_variance(n))
    total = own + shared
    df = np.square(total) / (np.square(shared) / run[1] + np.square(own) / cell[1])
    return np.asarray(t_quantile(tail, df) * np.sqrt(total))


def among(
    tail: float,
    cell: tuple[ArrayLike, ArrayLike],
    n: ArrayLike,
    error: ArrayLike,
    shift: tuple[ArrayLike, ArrayLike],
) -> Array:
    """The same for a cell that is held against the other cells of its run.

    Their common shift is taken out, and the effect of the run with it.

    Args:
        shift: of ``common_shift``: what the others moved, towards worse, and its variance.
    """
    own = own_variance(cell[0], n, error) + np.asarray(shift[1])
    return np.asarray(np.asarray(shift[0]) + t_quantile(tail, cell[1]) * np.sqrt(own))


def common_shift(changes: Array, variances: Array) -> tuple[Array, Array]:
    """How far the cells of a run moved together, robust to half of them, and its variance.

    The weighted median over the last axis, and pi / 2 times the variance of a weighted mean; 0
    and infinity with fewer than five cells.

    Args:
        changes: (..., cells) of logs, NaN for a cell that does not count.
        variances: (..., cells) of ``own_variance``.
    """
    if changes.shape[-1] < COMPANY:
        return np.zeros(changes.shape[:-1]), np.full(changes.shape[:-1], np.inf)
    known = np.isfinite(changes)
    weights = np.where(known, 1 / variances, 0.0)
    enough = known.sum(axis=-1) >= COMPANY
    shift = np.where(enough, weighted_median(changes, weights), 0.0)
    total = np.where(enough, weights.sum(axis=-1), 1.0)
    return shift, np.where(enough, math.pi / 2 / total, np.inf)


def floor_of(metric: Metric, baseline: ArrayLike, absolute: float | None = None) -> Array:
    """The smallest change of one cell that is ever called one, as a fraction of the baseline.

    Args:
        absolute: what the profile sets in place of ``metric.floor_abs``.
    """
    least = metric.floor_abs if absolute is None else absolute
    return np.maximum(metric.floor, least / np.asarray(baseline))


def beyond(measured: ArrayLike, baseline: ArrayLike, limit: ArrayLike) -> NDArray[np.bool_]:
    """Whether a value moved by more than a fraction of its baseline, either way."""
    return np.asarray(~(np.abs(np.asarray(measured) / np.asarray(baseline) - 1) <= limit))


def towards_worse(metric: Metric, change: ArrayLike) -> Array:
    """The size of a signed change, positive where it is for the worse."""
    return np.asarray(change) * (-1 if metric.better == "higher" else 1)


def fraction_worse(metric: Metric, log_change: ArrayLike) -> Array:
    """A change of a log towards worse as a fraction of the baseline: what delta is measured in."""
    if metric.better == "higher":
        return np.asarray(-np.expm1(-np.asarray(log_change)))
    return np.asarray(np.expm1(log_change))
