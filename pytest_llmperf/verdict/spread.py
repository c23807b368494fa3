"""What the runs of a baseline tell of the noise between runs: one model, fitted. Pure.

    log value = level of the cell + effect of the run + residual + the window's own error

The effect of a run moves all its cells together. The residual has a variance for each concurrency,
moderated towards the others and towards a stated prior. Both are estimated from differences of
successive runs, half of whose mean square is the variance (von Neumann 1941, Ann. Math. Stat. 12):
a level that creeps from run to run is then not taken for noise.

Elementwise on arrays with any leading axes, so that the judging of one run and a simulation of
thousands of matrices call the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_llmperf.model.metrics import Metric
from pytest_llmperf.stats.distributions import Array, digamma, trigamma, trigamma_inverse

SEPARABLE = 5
"""Cells from which what a run did to all of them can be told from what it did to each."""

RUN_SHARE = 0.3
"""Part of the variance between runs that all cells of a run share, before runs tell."""

RUN_LEAST = 0.0072
"""Least standard deviation of a run's effect to be expected, of logs."""

ROBUST_RUNS = 5
"""Runs of which one may be a bad one."""

CELL_DF, RUN_DF = 10.0, 30.0
"""Degrees of freedom that the priors of residuals and of run effects are worth. With the values
above they are chosen in ``benchmarks/montecarlo.py``: as few as keep false failures below 1 % of
matrices in its worlds, as many as its slowdowns need."""

RUN_DF_LEAST = 3.0
"""What is left of the prior of run effects when the runs deny it: two runs that lie apart
would else make every tolerance a whole."""

FEW_STREAMS, FEW_FACTOR = 2, 2.0
"""Up to so many streams a cell is expected to be so many times as noisy as the others."""

TEXT_SPREAD = {1: 0.20, 2: 0.20, 4: 0.08}
"""Standard deviation that the acceptance of draft tokens adds from prompt to prompt, by streams; 1
% beyond. Between equal runs of vLLM tok/s was seen to vary by 10, 20 and 7.5 % at 1, 2 and 4
streams and by 0.5 % from 8 on (vllm-project/vllm#53436)."""

_APART = 10
"""A run stands apart when without it the variance between runs is less than one in so many."""

_LEAST_VARIANCE = 1e-12
"""Of logs; a millionth is what six stored digits resolve."""


def expected_spread(metric: Metric, concurrency: ArrayLike, speculative: ArrayLike) -> Array:
    """The prior: standard deviation of a metric's log between runs, by cell.

    Args:
        concurrency: (cells,); 0 for prefill, which knows no noisy few.
        speculative: (cells,) whether a step yields several tokens there.
    """
    streams = np.asarray(concurrency)
    few = (streams > 0) & (streams <= FEW_STREAMS) & (metric.spread < 0.05)
    plain = metric.spread * np.where(few, FEW_FACTOR, 1.0)
    if not metric.by_text:
        return np.asarray(plain)
    text = np.select([streams == n for n in TEXT_SPREAD], list(TEXT_SPREAD.values()), 0.01)
    return np.asarray(np.hypot(plain, np.where(speculative, text, 0.0)))


def successive(logs: Array, levels: ArrayLike) -> Array:
    """Differences of each cell from its run before, (..., cells, runs - 1).

    NaN where either is missing, or where a change of level was accepted in between.

    Args:
        logs: (..., cells, runs), NaN where a run lacks the cell.
        levels: (cells, runs) the number of the level that a run belongs to.
    """
    levels = np.asarray(levels)
    steps = np.full((*logs.shape[:-1], logs.shape[-1] - 1), np.nan)
    before, level = logs[..., 0], np.broadcast_to(levels[:, 0], logs.shape[:-1])
    for run in range(1, logs.shape[-1]):
        here, known = logs[..., run], np.isfinite(logs[..., run])
        same = known & (levels[:, run] == level)
        steps[..., run - 1] = np.where(same, here - before, np.nan)
        before = np.where(known, here, before)
        level = np.where(known, levels[:, run], level)
    return steps


@dataclass(frozen=True)
class Spread:
    """Noise between runs of one metric, of logs."""

    cell: Array
    """(..., cells) variance of the residual."""
    cell_df: Array
    """(..., cells) its degrees of freedom."""
    run: Array
    """(...,) variance expected of what a run's cells share; 0 where it cannot be told apart."""
    steps: Array
    """(..., cells, runs - 1) as ``successive`` gives them."""

    def of_mean(self, weights: Array, least: float = 0.0) -> tuple[Array, Array]:
        """Variance of a run's weighted mean over cells, and its degrees of freedom.

        Args:
            weights: (..., cells), any scale; 0 leaves a cell out.
            least: smallest standard deviation of a run's effect to be expected, of logs.
        """
        weights = np.asarray(weights / weights.sum(axis=-1, keepdims=True))
        shared = np.where(self.run > 0, np.maximum(self.run, least**2), 0.0)
        expected = shared + (np.square(weights) * self.cell).sum(axis=-1)
        known = np.isfinite(self.steps)
        held = (weights[..., None] * known).sum(axis=-2)
        moved = (weights[..., None] * np.where(known, self.steps, 0)).sum(axis=-2)
        counts = held >= 0.5
        moved = np.where(counts, moved / np.where(counts, held, 1), 0)
        number = counts.sum(axis=-1)
        seen = np.square(moved).sum(axis=-1) / 2 / np.maximum(number, 1)
        seen = np.where(counts.all(axis=-1), _without_one(moved, seen), seen)
        prior_df = np.maximum(RUN_DF * _belief(seen / expected, number, 2.0, 3), RUN_DF_LEAST)
        return _combine(expected, prior_df, seen, neumann_df(number))


def fit(steps: Array, concurrency: ArrayLike, contexts: ArrayLike, prior: Array) -> Spread:
    """Fit the model to the differences of successive runs.

    The residual variance of a concurrency is the mean square of what is left of the differences
    once the run's own (their weighted median over cells) is taken out. Cells that move together
    within a concurrency or a context are fewer witnesses than cells (the design effect of
    clustered samples: Kish 1965, Survey Sampling, section 5.4). Concurrencies are moderated
    towards each other (Smyth 2004), then towards the prior, which speaks less the more clearly
    the runs deny it.

    Args:
        steps: (..., cells, runs - 1) of ``successive``.
        concurrency: (cells,)
        contexts: (cells,)
        prior: (cells,) of ``expected_spread``.
    """
    cells = steps.shape[-2]
    separable = cells >= SEPARABLE
    expected = np.square(prior) * (1 - RUN_SHARE if separable else 1)
    if separable and steps.shape[-1]:
        common = weighted_median(np.moveaxis(steps, -1, -2), 1 / expected)
        rest = steps - np.where(np.isfinite(common), common, 0)[..., None, :]
    else:
        rest = _without_a_bad_run(steps)
    scaled = rest / np.sqrt(expected)[:, None]
    lost = 1 - 1 / cells if separable else 1.0
    by_concurrency, index = _membership(concurrency)
    ratio, df = _by_group(scaled, by_concurrency, lost)
    together = _together(scaled, _membership(contexts)[0]).mean(axis=-1, keepdims=True)
    moderated, moderated_df = _moderate(np.maximum(ratio, _LEAST_VARIANCE), df)
    groups = np.maximum((df > 0).sum(axis=-1, keepdims=True), 1)
    moderated_df = np.minimum(
        moderated_df, df.sum(axis=-1, keepdims=True) / (1 + (groups - 1) * together)
    )
    prior_df = CELL_DF * _belief(moderated, moderated_df, 1.3, 2)
    ratio, df = _combine(np.ones_like(moderated), prior_df, moderated, moderated_df)
    variance = ratio[..., index] * expected
    usual = 1 / (1 / variance).mean(axis=-1)  # as a weighted mean over cells sees it
    run = np.maximum(RUN_SHARE / (1 - RUN_SHARE) * usual, RUN_LEAST**2)
    return Spread(variance, df[..., index], run if separable else 0 * run, steps)


def _without_one(moved: Array, seen: Array) -> Array:
    """The variance of runs from their successive differences, without one that stands apart.

    Of five runs or more one may have been a bad start. It is left out where the others vary by less
    than a tenth of the variance that it makes.
    """
    if moved.shape[-1] + 1 < ROBUST_RUNS:
        return seen
    least = _without_each(moved).min(axis=0) / 2
    return np.where(seen > _APART * least, least, seen)


def _without_a_bad_run(steps: Array) -> Array:
    """The same for so few cells that what a run did to all of them stays in each: their differences
    without such a run. NaN stands for the difference that is one less."""
    if steps.shape[-1] + 1 < ROBUST_RUNS:
        return steps
    moved = steps.mean(axis=-2)  # NaN where a cell lacks a run: then none is left out
    spreads = _without_each(moved)
    bad = np.square(moved).mean(axis=-1) > _APART * spreads.min(axis=0)
    found = steps
    for run in range(len(spreads)):
        chosen = bad & (spreads.argmin(axis=0) == run)
        others = np.pad(_leave_out(steps, run), [(0, 0)] * (steps.ndim - 1) + [(0, 1)],
                        constant_values=np.nan)  # fmt: skip
        found = np.where(chosen[..., None, None], others, found)
    return np.asarray(found)


def _without_each(moved: Array) -> Array:
    """(runs, ...) mean squares of the differences (..., runs - 1), each without one run."""
    runs = range(moved.shape[-1] + 1)
    return np.stack([np.square(_leave_out(moved, run)).mean(axis=-1) for run in runs])


def _leave_out(steps: Array, run: int) -> Array:
    """The differences of successive runs when there was one run less."""
    runs = np.concatenate([np.zeros((*steps.shape[:-1], 1)), np.cumsum(steps, axis=-1)], axis=-1)
    return np.diff(np.delete(runs, run, axis=-1), axis=-1)


def weighted_median(values: Array, weights: ArrayLike) -> Array:
    """Over the last axis, without NaN; the mean of the two in the middle where they tie.

    NaN where there is no value.
    """
    known = np.isfinite(values)
    weight = np.where(known, weights, 0.0)
    order = np.argsort(np.where(known, values, np.inf), axis=-1)
    ordered = np.take_along_axis(values, order, -1)
    running = np.cumsum(np.take_along_axis(weight, order, -1), axis=-1)
    half = running[..., -1:] / 2

    def pick(reached: NDArray[np.bool_]) -> Array:
        return np.take_along_axis(ordered, reached.argmax(axis=-1)[..., None], -1)[..., 0]

    middle = (pick(running >= half - 1e-12 * half) + pick(running > half + 1e-12 * half)) / 2
    return np.asarray(np.where(known.any(axis=-1), middle, np.nan))


def neumann_df(steps: ArrayLike) -> Array:
    """Degrees of freedom of a variance from so many successive differences: 2 k^2 / (3 k - 1)."""
    k = np.asarray(steps, float)
    return np.where(k > 0, 2 * k * k / np.maximum(3 * k - 1, 1), 0.0)


def _membership(labels: ArrayLike) -> tuple[Array, NDArray[np.intp]]:
    found, index = np.unique(np.asarray(labels), return_inverse=True)
    return (index[:, None] == np.arange(found.size)).astype(float), index


def _by_group(scaled: Array, member: Array, lost: float) -> tuple[Array, Array]:
    """Variance of each group in that expected, with what it is worth; 0 where nothing is known."""
    known = np.isfinite(scaled)
    squares = np.where(known, np.square(scaled) / 2, 0).sum(axis=-1) @ member
    steps = known.sum(axis=-1)
    count = steps @ member
    columns = (np.moveaxis(known, -1, -2) @ member > 0).sum(axis=-2)
    size = count / np.maximum(columns, 1)
    df = (neumann_df(steps) @ member) * lost
    df = df / (1 + np.maximum(size - 1, 0) * _together(scaled, member))
    return squares / np.maximum(count * lost, 1e-9), df


def _together(scaled: Array, member: Array) -> Array:
    """Intraclass correlation of each group: how much of its variance its cells share, 0 to 1."""
    known = np.isfinite(scaled)
    values = np.where(known, scaled, 0)
    sums = np.moveaxis(values, -1, -2) @ member
    squares = np.moveaxis(np.square(values), -1, -2) @ member
    counts = np.moveaxis(known, -1, -2) @ member
    cross = (np.square(sums) - squares).sum(axis=-2)
    pairs = (counts * (counts - 1)).sum(axis=-2)
    own = squares.sum(axis=-2) / np.maximum(counts.sum(axis=-2), 1)
    shared = cross / np.maximum(pairs, 1) / np.maximum(own, _LEAST_VARIANCE)
    return np.clip(np.where(pairs > 0, shared, 0), 0, 1)


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
    total = np.maximum(prior_df + df, 1e-9)
    moderated = (prior_df * prior + df * variances) / total
    return moderated, np.minimum(prior_df + df, all_df)


def _belief(ratio: Array, df: ArrayLike, knee: float, power: int) -> Array:
    """How much a prior still counts, 0 to 1, where the data have ``ratio`` times its variance."""
    denied = np.where(np.asarray(df) > 0, np.maximum(ratio / knee, 1.0), 1.0)
    return np.asarray(denied**-power)


def _combine(prior: Array, prior_df: Array, variance: Array, df: Array) -> tuple[Array, Array]:
    """Two estimates of a variance by their degrees of freedom."""
    total = prior_df + df
    return (prior_df * prior + df * variance) / total, total
