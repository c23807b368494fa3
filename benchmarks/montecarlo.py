"""How often the gate errs: false alarms and missed slowdowns over simulated matrices.

    python -m benchmarks.montecarlo [--matrices 4000] [--only shared,t3] [--json FILE]

The verdict code itself is called (the fit of the noise, tolerances of a cell by itself and among
others, confirmation by attempts or by further starts, the test of the whole matrix), on matrices
of 40 cells x 3 metrics. Unless a world says otherwise noise is 1 %, three times that at one and two
streams, drawn once per run and cell; a third of its variance is common to all cells of the run.
Each attempt adds 0.3 of it, and knows its own error from 16 batches. Metrics are independent;
"as one" gives a cell's metrics the same noise.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pytest_llmperf.baseline.schema import KEEP_RUNS, LEVEL_RUNS
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.stats.distributions import sidak
from pytest_llmperf.verdict import noise
from pytest_llmperf.verdict.gate import ALONE, ALONE_RUN, AMONG
from pytest_llmperf.verdict.judge import MEASUREMENTS
from pytest_llmperf.verdict.matrix import FLOOR, SAMPLE, groups, shift_of, spread_out, tails
from pytest_llmperf.verdict.spread import Spread, expected_spread, fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

CELLS = [Cell("decode", 1024 * 8 * 2**i, 2**j) for i in range(5) for j in range(8)]
CONCURRENCY = np.array([cell.concurrency for cell in CELLS])
CONTEXT = np.array([cell.context for cell in CELLS])
JUDGED = [METRICS[name] for name in ("total_tok_s", "itl_ms", "steps_s")]
ORDINARY = 12
"""A cell that is not among the noisy ones: 16K-c16."""
RESTARTS = 2
"""Further starts of the server that cells may ask for; the matrix has two of its own."""
STARTS = 1 + RESTARTS + MEASUREMENTS - 1


@dataclass(frozen=True)
class World:
    """What is simulated. Fractions."""

    noise: float = 0.01
    few: float = 3.0
    """Times as much at one and two streams."""
    runs: int = 5
    shared: float = 1 / 3
    by_concurrency: float = 0.0
    """Shares of the variance that all cells of a run have in common, and those of a concurrency."""
    as_one: bool = False
    """The metrics of a cell move together."""
    heavy: bool = False
    """The rest is Student's t with 3 degrees of freedom, at the same variance."""
    slow_start: tuple[float, float] = (0.0, 0.0)
    """Chance that a start comes up slow, and by how much."""
    drift: float = 0.0
    """Standard deviation of a run's slope from its first cell to its last."""
    throttle: tuple[float, float] = (0.0, 0.0)
    """Chance that a window is throttled, and by how much."""
    idle: float = 0.0
    """By how much the first window of a run is slow, in one run of three."""
    text: bool = False
    """Acceptance differs from prompt to prompt as seen at vLLM; steps do not."""
    bad_run: float = 0.0
    """By how much one run of the baseline is slow."""
    off: float = 0.0
    """By how much the first start of the run to judge is slow."""
    starts: bool = False
    """The run starts the server: a breach is confirmed by further starts."""


@dataclass(frozen=True)
class Draw:
    """One metric: (matrices, cells, runs), (matrices, cells, starts, 3 attempts), errors."""

    metric: Metric
    baseline: Array
    attempts: Array
    errors: Array
    speculative: bool = False


@dataclass(frozen=True)
class Found:
    """What the gate said of each matrix."""

    failed: Mask
    """(matrices, cells)"""
    gated: Mask
    """(matrices, cells)"""
    matrix: Mask
    """(matrices,)"""

    @property
    def any(self) -> Mask:
        """Whether anything of a matrix failed."""
        return np.asarray(self.failed.any(axis=-1) | self.matrix)


def draw(world: World, matrices: int, slower: Array, rng: np.random.Generator) -> list[Draw]:
    """Baselines and the attempts of one further run, at each of its starts.

    Args:
        world: the noise.
        matrices: how many.
        slower: (cells,) the fraction of its speed that each cell loses.
        rng: the source of all chance.
    """
    cells, runs, starts = len(CELLS), world.runs, STARTS if world.starts else 1
    count = runs + starts
    scale = world.noise * np.where(CONCURRENCY <= 2, world.few, 1.0)[:, None]

    def rest(*shape: int) -> Array:
        if world.heavy:
            return np.asarray(rng.standard_t(3, shape) / math.sqrt(3))
        return rng.standard_normal(shape)

    def between() -> Array:
        common = rng.standard_normal((matrices, 1, count)) * math.sqrt(world.shared)
        alike = rng.standard_normal((matrices, cells // 5, count)) * math.sqrt(world.by_concurrency)
        own = math.sqrt(1 - world.shared - world.by_concurrency)
        return np.asarray(
            scale * (common + np.tile(alike, (1, 5, 1)) + own * rest(matrices, cells, count))
        )

    def happens(event: tuple[float, float], *shape: int) -> Array:
        chance, loss = event
        return np.where(rng.random(shape) < chance, -math.log1p(-loss), 0.0)

    # logs of slowness, so that the sign is the metric's
    always = happens(world.slow_start, matrices, 1, count)
    slope = world.drift * rng.standard_normal((matrices, 1, count))
    always = always + slope * np.linspace(0, 1, cells)[:, None]
    if world.bad_run:
        always[..., rng.integers(runs)] -= math.log1p(-world.bad_run)
    always[..., runs] -= math.log1p(-world.off)
    stored = happens(world.throttle, matrices, cells, runs)
    fresh = happens(world.throttle, matrices, cells, starts, MEASUREMENTS)
    fresh -= np.log1p(-slower)[:, None, None]
    fresh[:, 0, 0, 0] += happens((1 / 3, world.idle), matrices)
    text = np.select([n == CONCURRENCY for n in (1, 2, 4)], [0.099, 0.197, 0.075], 0.004)[:, None]
    drawn, moved = [], between()
    for metric in JUDGED:
        if not world.as_one:
            moved = between()
        level = moved + always
        if world.text and metric.by_text:
            level = level + text * rng.standard_normal((matrices, cells, count))
        window = 0.3 * scale * rng.standard_normal((matrices, cells, runs))
        old = level[..., :runs] + window + stored
        again = 0.3 * scale[..., None] * rng.standard_normal(fresh.shape)
        new = level[..., runs:, None] + again + fresh
        sign = -1 if metric.better == "higher" else 1
        errors = 0.3 * scale[:, 0] * np.sqrt(rng.chisquare(15, (matrices, cells)) / 15)
        drawn.append(
            Draw(metric, 100 * np.exp(sign * old), 100 * np.exp(sign * new), errors, world.text)
        )
    return drawn


@dataclass(frozen=True)
class Judge:
    """One metric of many matrices: what the gate knows before a run, and what the run does."""

    metric: Metric
    spread: Spread
    alone: Array
    """(matrices, cells) largest change of a log that chance explains."""
    changes: Array
    """(matrices, cells, starts, attempts) of logs, towards worse."""
    errors: Array
    runs: int

    @classmethod
    def of(cls, drawn: Draw, metrics: int) -> Judge:
        """Fit the noise as ``Gate`` does."""
        metric, logs = drawn.metric, np.log(drawn.baseline)
        prior = expected_spread(metric, CONCURRENCY, np.full(len(CELLS), drawn.speculative))
        spread = fit(np.diff(logs, axis=-1), CONCURRENCY, CONTEXT, prior)
        run, run_df = spread.of_mean(1 / spread.cell, ALONE_RUN)
        speaking = min(drawn.baseline.shape[-1], LEVEL_RUNS)
        level = np.median(drawn.baseline[..., :speaking], axis=-1)
        changes = noise.towards_worse(metric, np.log(drawn.attempts / level[..., None, None]))
        alone = noise.alone(
            sidak(ALONE, len(CELLS) * metrics),
            (spread.cell, spread.cell_df),
            (run[..., None], run_df[..., None]),
            speaking,
            drawn.errors,
        )
        return cls(metric, spread, alone, changes, drawn.errors, speaking)

    @property
    def variance(self) -> Array:
        """(matrices, cells) of a change, beside what its run shares."""
        return noise.own_variance(self.spread.cell, self.runs, self.errors)

    def limit(self, cell: int, judged: Array, same_start: Mask, metrics: int) -> Array:
        """(matrices,) of a log, for a cell whose predecessors are ``judged``."""
        others = np.where(same_start, judged, np.nan)
        shift = noise.common_shift(others, self.variance[:, :cell])
        beside = noise.among(
            sidak(AMONG, len(CELLS) * metrics),
            (self.spread.cell[:, cell], self.spread.cell_df[:, cell]),
            self.runs,
            self.errors[:, cell],
            shift,
        )
        least = -np.log1p(-self.metric.floor)
        if self.metric.better == "lower":
            least = np.log1p(self.metric.floor)
        return np.maximum(np.minimum(self.alone[:, cell], beside), least)


def judge(drawn: list[Draw], starts: bool = False) -> Found:
    """Judge every cell in its order, confirming a breach, and each matrix as a whole.

    Args:
        drawn: every metric.
        starts: a breach is confirmed at further starts of the server, as long as some are left.
    """
    known = [Judge.of(d, len(drawn)) for d in drawn]
    matrices, rows = drawn[0].baseline.shape[0], np.arange(drawn[0].baseline.shape[0])
    start, left = np.zeros(matrices, int), np.full(matrices, RESTARTS if starts else 0)
    judged = [np.full((matrices, len(CELLS)), np.nan) for _ in drawn]
    at = np.full((matrices, len(CELLS)), -1)
    failed = np.zeros((matrices, len(CELLS)), bool)
    for cell in range(len(CELLS)):
        same = at[:, :cell] == start[:, None]
        at[:, cell] = start
        limits = [
            k.limit(cell, j[:, :cell], same, len(drawn)) for k, j in zip(known, judged, strict=True)
        ]
        attempt = np.zeros(matrices, int)
        values: list[list[Array]] = [[] for _ in known]
        unsure = begun = np.ones(matrices, bool)
        for number in range(MEASUREMENTS):
            anew = unsure & (left > 0) & (number > 0)
            start, left = start + anew, left - anew
            place = np.where(anew | (number == 0), 0, attempt)
            for k, seen in zip(known, values, strict=True):
                value = k.changes[rows, cell, start, place]
                seen.append(np.where(begun, value, np.nan))
            attempt = place + 1
            unsure = unsure & _worse(known, values, limits)
            begun = unsure if number == 0 else begun
        failed[:, cell] = unsure
        for column, seen in zip(judged, values, strict=True):
            column[:, cell] = np.nanmedian(np.stack(seen), axis=0)
    gated = [
        noise.fraction_worse(k.metric, k.alone) <= k.metric.observed_beyond for k in known
    ]  # fmt: skip
    return Found(failed, np.any(gated, axis=0), _judge_matrix(known, judged, start, starts))


def _worse(known: list[Judge], values: list[list[Array]], limits: list[Array]) -> Mask:
    """As ``compare``: the median beyond the tolerance, each attempt beyond half of it."""
    found = []
    for k, seen, limit in zip(known, values, limits, strict=True):
        all_of_it = np.stack(seen)
        half = np.log1p(noise.fraction_worse(k.metric, limit) / 2)
        if k.metric.better == "higher":
            half = -np.log1p(-noise.fraction_worse(k.metric, limit) / 2)
        each = np.all(np.isnan(all_of_it) | (all_of_it > half), axis=0)
        found.append((np.nanmedian(all_of_it, axis=0) > limit) & each)
    return np.asarray(np.any(found, axis=0))


def _judge_matrix(known: list[Judge], judged: list[Array], start: Array, starts: bool) -> Mask:
    parts = groups(CELLS)
    whole, part = tails(len(known), len(known) * (len(parts) - 1))
    worse, rows = np.zeros(start.shape, bool), np.arange(start.size)
    for k, values in zip(known, judged, strict=True):
        if k.spread.steps.shape[-1] == 0:
            continue
        for number, (_, member) in enumerate(parts):
            tail = part if number else whole
            change, limit = shift_of(k.spread, values, member, k.runs, tail)
            tolerance = np.maximum(noise.fraction_worse(k.metric, limit), FLOOR * k.metric.floor)
            hit = noise.fraction_worse(k.metric, change) > tolerance
            if starts:
                some = np.zeros(len(CELLS), bool)
                some[spread_out(np.flatnonzero(member), SAMPLE)] = True
                for later in range(1, MEASUREMENTS):
                    again = k.changes[rows, :, start + later, 0]
                    change, _ = shift_of(k.spread, again, some, k.runs, tail)
                    hit &= noise.fraction_worse(k.metric, change) > tolerance / 2
            worse |= hit
    return worse


def simulate(world: World, matrices: int, slower: Array, seed: int) -> Found:
    """The same in blocks, to bound memory."""
    rng = np.random.default_rng(seed)
    blocks = [
        judge(draw(world, min(500, matrices - first), slower, rng), world.starts)
        for first in range(0, matrices, 500)
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


def upper_half(fraction: float) -> Array:
    """Every cell of 16 streams or more slower by a fraction of its speed."""
    return np.where(CONCURRENCY >= 16, fraction, 0.0)


def creep(world: World, matrices: int, seed: int, releases: int = 8) -> tuple[Array, float]:
    """1 % a release, each added to the baseline unless it is caught.

    Returns:
        The release (1 to ``releases``) at which it is first caught, infinity if never; and how
        often a cell at -5 % is caught after so many releases that were all added.
    """
    rng = np.random.default_rng(seed)
    caught, after = np.full(matrices, np.inf), []
    for first in range(0, matrices, 500):
        block = slice(first, min(first + 500, matrices))
        base = draw(world, block.stop - first, everywhere(0), rng)
        for release in range(1, releases + 1):
            fresh = draw(world, block.stop - first, everywhere(1 - 0.99**release), rng)
            now = [replace(b, attempts=f.attempts) for b, f in zip(base, fresh, strict=True)]
            caught[block] = np.where(
                judge(now).any, np.minimum(caught[block], release), caught[block]
            )
            base = [replace(d, baseline=_add(d)) for d in now]
        slow = draw(world, block.stop - first, one_cell(0.05), rng)
        now = [replace(b, attempts=f.attempts) for b, f in zip(base, slow, strict=True)]
        after.append(judge(now).failed[:, ORDINARY])
    return caught, float(np.concatenate(after).mean())


def _add(drawn: Draw) -> Array:
    runs = np.concatenate([drawn.baseline, drawn.attempts[..., 0, :1]], axis=-1)
    speaking, others = runs[..., :LEVEL_RUNS], runs[..., LEVEL_RUNS:]
    return np.concatenate([speaking, others[..., LEVEL_RUNS - KEEP_RUNS :]], axis=-1)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share seen in ``count`` (Wilson 1927, JASA 22)."""
    z2 = 1.96**2
    centre = share + z2 / (2 * count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count * count)))
    return (centre - half) / (1 + z2 / count), (centre + half) / (1 + z2 / count)


@dataclass(frozen=True)
class Row:
    """One figure of the table; shares."""

    what: str
    runs: int
    share: float
    low: float
    high: float
    """95 % interval (Wilson 1927)."""
    goal: str
    met: bool
    ungated: float | None = None
    """Cells with no metric that can be judged."""


WORLDS: Mapping[str, World] = {
    "noise 1 %": World(),
    "noise 1 %, metrics as one": World(as_one=True),
    "noise 0.5 %": World(noise=0.005),
    "noise 2 % everywhere": World(noise=0.02, few=1.0),
    "shared by the run": World(shared=2 / 3),
    "shared by concurrency": World(shared=0.2, by_concurrency=0.5),
    "all of it by cell": World(shared=0.0),
    "drift within a session": World(drift=0.01),
    "a bad run in the baseline": World(bad_run=0.2),
    "40 % slow after idling": World(idle=0.4),
    "throttled windows": World(throttle=(0.03, 0.08)),
    "acceptance by prompt": World(text=True),
    "t3, second start": World(heavy=True, starts=True),
    "t3, metrics as one, second start": World(heavy=True, as_one=True, starts=True),
    "1 start of 10 is 4 % slow, second start": World(slow_start=(0.1, 0.04), starts=True),
    "1 start of 4 is 20 % slow, second start": World(slow_start=(0.25, 0.2), starts=True),
    "this run is 2 % slow, second start": World(off=0.02, starts=True),
}
"""Nothing changes in any of them: what is called worse is false."""

BEYOND: Mapping[str, World] = {
    "noise 2 %, 6 % at few streams": World(noise=0.02),
    "noise 3 %, 9 % at few streams": World(noise=0.03),
    "t3, one start": World(heavy=True),
    "1 start of 10 is 4 % slow, one start": World(slow_start=(0.1, 0.04)),
    "this run is 2 % slow, one start": World(off=0.02),
}
"""Shown without a goal: noise beyond the prior until runs tell, and what one start cannot know."""


def rows(matrices: int, seed: int, chosen: Callable[[str], bool]) -> Iterator[Row]:
    """Every figure, as soon as it is known."""
    for worlds, promised in ((WORLDS, True), (BEYOND, False)):
        for name, world in worlds.items():
            for runs in (1, 2, 3, 5, 10) if chosen(f"false: {name}") else ():
                if runs < 2 and world.bad_run:
                    continue
                found = simulate(replace(world, runs=runs), matrices, everywhere(0), seed)
                most = 0.02 if runs < 3 else 0.01
                yield _row(
                    f"false: {name}", runs, found.any, f"<= {most:.0%}" if promised else "",
                    most=most if promised else 1.0, ungated=float(1 - found.gated.mean()),
                )  # fmt: skip
    for as_one in (False, True):
        mark = ", metrics as one" if as_one else ""
        cases = [
            *((f"one cell -{x:.0%}", one_cell(x), {5: least})
              for x, least in ((0.05, 0.75), (0.07, 0.97), (0.10, 0.995))),
            ("all cells -4%", everywhere(0.04), {2: 0.8, 3: 0.99, 5: 0.99, 10: 0.99}),
            ("cells from 16 streams on -4%", upper_half(0.04), {5: 0.85}),
        ]  # fmt: skip
        for name, slower, goals in cases:
            for runs in (1, 2, 3, 5, 10) if chosen(f"caught: {name}{mark}") else ():
                found = simulate(World(runs=runs, as_one=as_one), matrices, slower, seed + 1)
                hit = found.failed[:, ORDINARY] if name.startswith("one") else found.any
                least = 0.0 if as_one else goals.get(runs, 0.0)
                yield _row(f"caught: {name}{mark}", runs, hit, f">= {least:.1%}" if least else "",
                           least=least)  # fmt: skip
        if chosen(f"caught: 1% a release{mark}"):
            some = max(matrices // 4, 100)
            caught, after = creep(World(as_one=as_one), some, seed + 3)
            yield _row(f"caught: 1% a release, added, within 8{mark}", 5, np.isfinite(caught),
                       ">= 95 %", least=0.95)  # fmt: skip
            yield _row(f"caught: one cell -5% after that{mark}", 10,
                       np.arange(some) < round(after * some), "")  # fmt: skip


def _row(
    what: str, runs: int, hits: Mask, goal: str, *, least: float = 0.0, most: float = 1.0,
    ungated: float | None = None,
) -> Row:  # fmt: skip
    share = float(hits.mean())
    low, high = wilson(share, hits.size)
    return Row(what, runs, share, low, high, goal, least <= share <= most, ungated)


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows with one of these in their names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = options.only.split(",")
    started, table = time.monotonic(), []
    print(f"{'':52} {'runs':>4} {'share':>8} {'95 % interval':>17}  {'goal':9} {'':6} ungated")
    for row in rows(options.matrices, options.seed, lambda name: any(w in name for w in wanted)):
        table.append(row.__dict__)
        interval = f"{row.low:.2%} - {row.high:.2%}"
        met = "" if not row.goal else "met" if row.met else "MISSED"
        ungated = "" if row.ungated is None else f"{row.ungated:.1%}"
        print(
            f"{row.what:52} {row.runs:4} {row.share:8.2%} {interval:>17}  {row.goal:9} {met:6} "
            f"{ungated}",
            flush=True,
        )
    print(f"{options.matrices} matrices a row, {time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
