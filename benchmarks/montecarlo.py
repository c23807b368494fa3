"""How often the gate errs: false alarms and missed slowdowns over simulated matrices.

    python benchmarks/montecarlo.py [--matrices 10000] [--json FILE]

The verdict code itself is called (tolerances, breach and confirmation, whole-matrix test), on
matrices of 40 cells x 3 metrics with a baseline of five runs. Noise of a level: drawn once per run
and cell (three attempts share it), a third of its variance common to all cells of the run, three
times as large at concurrency 1 and 2; each attempt adds 0.3 of it, and knows its own error from 16
batches. Metrics are independent; rows marked "as one" give a cell's metrics the same noise, which
is nearer to real life and harder for the matrix view.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.stats.distributions import sidak
from pytest_llmperf.verdict.gate import FALSE_ALARM
from pytest_llmperf.verdict.matrix import groups, shift_of, tails, towards_worse
from pytest_llmperf.verdict.noise import beyond, fit_spread, quantile, tolerance

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

CELLS = [Cell("decode", 1024 * 8 * 2**i, 2**j) for i in range(5) for j in range(8)]
CONCURRENCY = np.array([cell.concurrency for cell in CELLS])
JUDGED = [METRICS[name] for name in ("total_tok_s", "itl_ms", "steps_s")]
LEVELS = (0.005, 0.01, 0.02, 0.03)
ORDINARY = 12
"""A cell that is not among the noisy ones: 16K-c16."""


@dataclass(frozen=True)
class World:
    """What is simulated. Fractions."""

    noise: float
    runs: int = 5
    shared: float = 1 / 3
    as_one: bool = False
    """The metrics of a cell move together."""


@dataclass(frozen=True)
class Draw:
    """One metric: (matrices, cells, runs), (matrices, cells, 3 attempts), relative errors."""

    metric: Metric
    baseline: Array
    attempts: Array
    errors: Array


@dataclass(frozen=True)
class Found:
    """What the gate said of each matrix."""

    failed: Mask
    """(matrices, cells)"""
    gated: Mask
    """(matrices, cells)"""
    matrix: Mask
    """(matrices,)"""


def draw(world: World, matrices: int, slower: Array, rng: np.random.Generator) -> list[Draw]:
    """Baselines and the attempts of one further run.

    Args:
        world: the noise.
        matrices: how many.
        slower: (cells,) the fraction of its speed that each cell loses.
        rng: the source of all chance.
    """
    scale = world.noise * np.where(CONCURRENCY <= 2, 3.0, 1.0)[:, None]
    cells = len(CELLS)

    def noise() -> tuple[Array, Array]:
        count = world.runs + 1
        common = rng.standard_normal((matrices, 1, count)) * math.sqrt(world.shared)
        own = rng.standard_normal((matrices, cells, count)) * math.sqrt(1 - world.shared)
        within = 0.3 * rng.standard_normal((matrices, cells, world.runs + 3))
        return scale * (common + own), scale * within

    drawn = []
    between, within = noise()
    for metric in JUDGED:
        if not world.as_one:
            between, within = noise()
        # logs of slowness, so that the sign is the metric's
        old = between[..., : world.runs] + within[..., : world.runs]
        new = between[..., -1:] + within[..., world.runs :] - np.log1p(-slower)[:, None]
        sign = -1 if metric.better == "higher" else 1
        errors = 0.3 * scale[:, 0] * np.sqrt(rng.chisquare(15, (matrices, cells)) / 15)
        drawn.append(Draw(metric, 100 * np.exp(sign * old), 100 * np.exp(sign * new), errors))
    return drawn


def judge(drawn: list[Draw]) -> Found:
    """Judge every cell, measuring twice more on a breach, and each matrix as a whole."""
    tail = sidak(FALSE_ALARM, len(CELLS) * len(drawn))
    spreads = [fit_spread(d.baseline, CONCURRENCY) for d in drawn]
    medians = [np.median(d.baseline, axis=-1) for d in drawn]
    limits = [
        tolerance(d.metric, quantile(tail, df), s2, d.baseline.shape[-1], d.errors, median)
        for d, (s2, df), median in zip(drawn, spreads, medians, strict=True)
    ]
    gated = [
        chance <= d.metric.observed_beyond for d, (chance, _) in zip(drawn, limits, strict=True)
    ]

    def worse(values: list[Array]) -> Mask:
        found = [
            (towards_worse(d.metric, value - median) > 0) & beyond(value, median, limit)
            for d, value, median, (_, limit) in zip(drawn, values, medians, limits, strict=True)
        ]
        return np.asarray(np.any(found, axis=0))

    first = [d.attempts[..., 0] for d in drawn]
    breached = worse(first)
    middle = [
        np.where(breached, np.median(d.attempts, axis=-1), value)
        for d, value in zip(drawn, first, strict=True)
    ]
    return Found(
        breached & worse(middle),
        np.any(gated, axis=0),
        _judge_matrix(drawn, middle, [s2 for s2, _ in spreads]),
    )


def _judge_matrix(drawn: list[Draw], measured: list[Array], variances: list[Array]) -> Mask:
    parts = groups(CELLS)
    whole, part = tails(len(drawn), len(drawn) * (len(parts) - 1))
    worse = np.zeros(measured[0].shape[0], bool)
    for d, new, variance in zip(drawn, measured, variances, strict=True):
        for number, (_, member) in enumerate(parts):
            change, limit = shift_of(
                d.metric,
                d.baseline[:, member],
                new[:, member],
                variance[:, member],
                part if number else whole,
            )
            worse |= towards_worse(d.metric, change) > limit
    return worse


def simulate(world: World, matrices: int, slower: Array, seed: int) -> Found:
    """The same in blocks, to bound memory."""
    rng = np.random.default_rng(seed)
    blocks = [
        judge(draw(world, min(500, matrices - start), slower, rng))
        for start in range(0, matrices, 500)
    ]
    return Found(
        np.concatenate([b.failed for b in blocks]),
        np.concatenate([b.gated for b in blocks]),
        np.concatenate([b.matrix for b in blocks]),
    )


def everywhere(fraction: float) -> Array:
    """Every cell slower by a fraction of its speed."""
    return np.full(len(CELLS), fraction)


def one_cell(fraction: float) -> Array:
    """One ordinary cell slower by a fraction of its speed."""
    slower = np.zeros(len(CELLS))
    slower[ORDINARY] = fraction
    return slower


def creep(world: World, matrices: int, seed: int, releases: int = 8) -> Array:
    """Release (1 to ``releases``) at which 1 % a release is first caught; infinity if never.

    Every release is a new run against the same frozen baseline.
    """
    rng = np.random.default_rng(seed)
    caught = np.full(matrices, np.inf)
    for start in range(0, matrices, 500):
        block = slice(start, min(start + 500, matrices))
        base = draw(world, block.stop - start, everywhere(0), rng)
        for release in range(1, releases + 1):
            fresh = draw(world, block.stop - start, everywhere(1 - 0.99**release), rng)
            frozen = zip(base, fresh, strict=True)
            found = judge([Draw(b.metric, b.baseline, f.attempts, f.errors) for b, f in frozen])
            hit = found.matrix | found.failed.any(axis=-1)
            caught[block] = np.where(hit, np.minimum(caught[block], release), caught[block])
    return caught


def upper_95(share: float, count: int) -> float:
    """One-sided upper 95 % bound of a share seen in ``count`` (Wilson 1927, JASA 22)."""
    z2 = 1.6449**2
    centre = share + z2 / (2 * count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count * count)))
    return (centre + half) / (1 + z2 / count)


@dataclass(frozen=True)
class Row:
    """One figure of the table; shares."""

    what: str
    noise: float
    share: float
    bound: float | None
    """Upper 95 % bound, for false alarms."""
    goal: str
    ungated: float
    """Cells with no metric that can be judged."""


def rows(matrices: int, seed: int) -> Iterator[Row]:
    """Every figure, as soon as it is known."""
    for as_one in (False, True):
        mark = ", metrics as one" if as_one else ""
        for level in LEVELS:
            found = simulate(World(level, as_one=as_one), matrices, everywhere(0), seed)
            ungated = 1 - found.gated.mean()
            for what, false in (("cell", found.failed.any(axis=-1)), ("matrix", found.matrix)):
                share = float(false.mean())
                yield Row(
                    f"false {what} verdict{mark}",
                    level,
                    share,
                    upper_95(share, matrices),
                    "<= 1 %, bound <= 1.5 %",
                    ungated,
                )
        world = World(0.01, as_one=as_one)
        for slower, goal in ((0.05, 60), (0.07, 95), (0.10, 99)):
            found = simulate(world, matrices, one_cell(slower), seed + 1)
            yield Row(
                f"one cell {slower:.0%} slower{mark}",
                world.noise,
                float(found.failed[:, ORDINARY].mean()),
                None,
                "" if as_one else f">= {goal} %",
                1 - found.gated.mean(),
            )
        for level in LEVELS:
            found = simulate(World(level, as_one=as_one), matrices, everywhere(0.04), seed + 2)
            yield Row(
                f"all cells 4% slower, by the matrix{mark}",
                level,
                float(found.matrix.mean()),
                None,
                ">= 90 %" if level == world.noise and not as_one else "",
                1 - found.gated.mean(),
            )
        for level in LEVELS:
            caught = creep(World(level, as_one=as_one), max(matrices // 10, 100), seed + 3)
            yield Row(
                f"creep of 1% a release, caught within 8{mark}",
                level,
                float(np.isfinite(caught).mean()),
                None,
                "all" if level == world.noise and not as_one else "",
                math.nan,
            )


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started, table = time.monotonic(), []
    print(f"{'':55} {'noise':>6} {'share':>8} {'bound':>8} {'ungated':>8}  goal")
    for row in rows(options.matrices, options.seed):
        table.append(row.__dict__)
        bound = "" if row.bound is None else f"{row.bound:.2%}"
        ungated = "" if math.isnan(row.ungated) else f"{row.ungated:.1%}"
        print(
            f"{row.what:55} {row.noise:6.1%} {row.share:8.2%} {bound:>8} {ungated:>8}  {row.goal}",
            flush=True,
        )
    print(f"{options.matrices} matrices a row, {time.monotonic() - started:.0f} s")
    if options.json:
        clean = [{k: None if v != v else v for k, v in row.items()} for row in table]
        options.json.write_text(json.dumps(clean, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
