"""All cells together: a change too small for any cell may be certain over many. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_llmperf.model.grid import Cell, Phase, format_tokens
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.model.result import CellRecord
from pytest_llmperf.stats.distributions import Array, sidak, t_quantile
from pytest_llmperf.verdict.compare import change_of, usable
from pytest_llmperf.verdict.gate import Fitted, Gate
from pytest_llmperf.verdict.noise import (
    floor_of,
    fraction_worse,
    median_variance,
    towards_worse,
)
from pytest_llmperf.verdict.spread import Spread

Mask = NDArray[np.bool_]

PHASES: tuple[Phase, ...] = ("decode", "prefill")

FALSE_ALARM = 0.004
"""Chance that a matrix in which nothing changed is called worse as a whole; with those that single
cells have (``gate.ALONE``, ``gate.AMONG``) about 1 %: ``benchmarks/montecarlo.py``."""

WHOLE = 0.6
"""Share of the allowed chance of a false alarm that the tests over all cells get; the groups share
the rest. A slowdown everywhere is what cells cannot show one by one."""

SAMPLE = 8
"""Cells that are measured again, at another start of the server, before all are called worse."""

LEAST_RUNS = 2
"""Runs without which a shift of all cells cannot be told from a run like any other."""

FLOOR = 0.5
"""Smallest shift that counts, as a share of the metric's floor for one cell."""


@dataclass(frozen=True)
class Shift:
    """One metric over one group of cells."""

    metric: str
    group: str
    """For people: "all contexts, concurrency >= 16"."""
    members: tuple[str, ...]
    """Ids of the cells."""
    runs: int
    change: float
    """Fraction of the baseline, signed as measured."""
    tolerance: float
    """Smallest change towards worse that this test calls one, as a fraction."""
    worse: bool

    @property
    def line(self) -> str:
        """The test as a line for people."""
        return (
            f"{self.group}: {METRICS[self.metric].label} {100 * self.change:+.1f} % "
            f"(tolerance {100 * self.tolerance:.1f} %, {len(self.members)} cells, {self.runs} runs)"
            f"{' WORSE' if self.worse else ''}"
        )


@dataclass(frozen=True)
class MatrixVerdict:
    """Every test made, the widest groups first."""

    shifts: tuple[Shift, ...]
    why: str = ""
    """Why nothing could be tested; empty if something was."""
    note: str = ""
    """How sure it is, for people."""

    @property
    def worse(self) -> tuple[Shift, ...]:
        """What got worse."""
        return tuple(shift for shift in self.shifts if shift.worse)

    @property
    def message(self) -> str:
        """The metrics that got worse, with every group of each; empty when none did."""
        bad = {shift.metric for shift in self.worse}
        lines = [shift.line for shift in self.shifts if shift.metric in bad]
        title = "The cells together are worse than their baseline:"
        return "\n".join([title, *lines, *filter(None, [self.note])] if bad else [])


def judge_matrix(records: Sequence[CellRecord], gate: Gate) -> MatrixVerdict:
    """Test the judged metrics over all cells, and over halves of the contexts and concurrencies.

    Cells without a value that compares stay out, and those with a tolerance of their own. A
    tolerance that is set for a metric is the one that its mean over cells has to keep.
    """
    tables = [
        table
        for phase in PHASES
        for metric in METRICS.values()
        if (table := _tabulate(metric, phase, records, gate))
    ]
    if not tables:
        return MatrixVerdict((), f"no metric has {LEAST_RUNS} runs in two cells or more")
    parted = [(table, groups(table.cells)) for table in tables]
    whole, part = tails(len(tables), sum(len(parts) - 1 for _, parts in parted))
    return MatrixVerdict(
        tuple(
            _test(table, name, member, part if number else whole)
            for table, parts in parted
            for number, (name, member) in enumerate(parts)
        )
    )


def choose_sample(verdict: MatrixVerdict) -> list[Cell]:
    """The cells to measure again before a group that is worse is called so: of each phase some of
    the widest one."""
    chosen = []
    for phase in PHASES:
        groups = [[Cell.parse(name) for name in shift.members] for shift in verdict.worse]
        cells = max((group for group in groups if group[0].phase == phase), key=len, default=[])
        chosen += [cells[place] for place in spread_out(np.arange(len(cells)), SAMPLE)]
    return chosen


def confirm(verdict: MatrixVerdict, again: Sequence[CellRecord], gate: Gate) -> MatrixVerdict:
    """What is left of a verdict when some cells were measured again, at another start.

    A shift that is less than half its tolerance there was that of a start, not of the build.
    """
    return replace(verdict, shifts=tuple(_confirm(shift, again, gate) for shift in verdict.shifts))


def _confirm(shift: Shift, again: Sequence[CellRecord], gate: Gate) -> Shift:
    metric = METRICS[shift.metric]
    inside = [record for record in again if record.cell in shift.members]
    moved = [found for record in inside if (found := change_of(metric, record, gate))]
    if not shift.worse or not moved:
        return shift
    weights = [1 / one.variance for one in moved]
    change = float(np.average([one.change for one in moved], weights=weights))
    return replace(shift, worse=float(fraction_worse(metric, change)) > shift.tolerance / 2)


def groups(cells: Sequence[Cell]) -> list[tuple[str, Mask]]:
    """All cells first, then the lower and upper half of the concurrencies and of the contexts.

    Each with a name for people and a mask over ``cells``. Halves, because every further group
    costs power; a half with a single cell is none.
    """
    concurrency = np.array([cell.concurrency for cell in cells])
    context = np.array([cell.context for cell in cells])
    found = [("all cells", np.ones(len(cells), bool))]
    for values, name in (
        (concurrency, "all contexts, concurrency {}"),
        (context, "contexts {}, all concurrencies"),
    ):
        levels = [int(v) for v in np.unique(values)]
        if len(levels) < 2:
            continue
        middle = len(levels) // 2
        for sign, level in (("<=", levels[middle - 1]), (">=", levels[middle])):
            label = format_tokens(level) if values is context else str(level)
            member = values <= level if sign == "<=" else values >= level
            alone = np.all(values[member] == level)
            found.append((name.format(label if alone else f"{sign} {label}"), member))
    return [(name, member) for name, member in found if member.sum() > 1]


def spread_out(places: NDArray[np.intp], number: int) -> NDArray[np.intp]:
    """So many of the places, the first and the last among them, or all where there are fewer."""
    chosen = np.linspace(0, max(len(places) - 1, 0), min(number, len(places))).round().astype(int)
    return np.asarray(places[chosen])


def tails(metrics: int, parts: int) -> tuple[float, float]:
    """Chance of a false alarm for each test over all cells, and for each over a part of them."""
    return (
        sidak(FALSE_ALARM * WHOLE, metrics),
        sidak(FALSE_ALARM * (1 - WHOLE), parts),
    )


def shift_of(
    spread: Spread, changes: Array, member: Mask, runs: ArrayLike, tail: float
) -> tuple[Array, Array]:
    """How far a group of cells moved together, and how far noise moves it: of logs.

    The mean of the cells' changes, weighted by 1 / variance, against a run's mean as
    ``Spread.of_mean`` knows it: ``q r sqrt(1 + m)``, m of ``noise.median_variance``. What cells of
    a run have in common is in r, so that they need not be independent: a test over cells would
    take them for witnesses.

    Args:
        spread: of the metric, over all cells of the baseline.
        changes: (..., cells) of logs, towards worse; where ``member`` is not set, ignored.
        member: (cells,) or (..., cells), the group.
        runs: that speak for the level.
        tail: chance of a false alarm.
    """
    weights = np.where(member, 1 / spread.cell, 0.0)
    variance, df = spread.of_mean(weights)
    mean = (np.where(member, changes, 0.0) * weights).sum(axis=-1) / weights.sum(axis=-1)
    limit = t_quantile(tail, df) * np.sqrt(variance * (1 + median_variance(runs)))
    return mean, limit


@dataclass(frozen=True)
class _Table:
    metric: Metric
    cells: Sequence[Cell]
    places: NDArray[np.intp]
    """Of the cells in ``fitted``."""
    changes: Array
    """Of logs, towards worse."""
    baseline: Array
    runs: int
    fitted: Fitted
    override: float | None
    floor: float | None


def _tabulate(
    metric: Metric, phase: Phase, records: Sequence[CellRecord], gate: Gate
) -> _Table | None:
    """What one metric did, cell by cell; None where there is too little to test."""
    fitted = gate.fitted.get((metric.name, phase))
    if fitted is None or fitted.runs < LEAST_RUNS:
        return None
    rows: list[tuple[Cell, float, float]] = []
    for record in records:
        cell = Cell.parse(record.cell)
        own = f"{metric.name}@{cell.id}" in gate.overrides
        judged = gate.gates(metric, cell) and not gate.watches(metric, cell)
        if cell.phase != phase or not judged or own:
            continue
        found = next((c for c in record.comparisons if c.metric == metric.name), None)
        if found is None or found.tolerance is None or not usable(found.measured):
            continue
        assert found.baseline is not None
        change = towards_worse(metric, math.log(found.measured / found.baseline))
        rows.append((cell, float(change), found.baseline))
    if len(rows) < 2:
        return None
    cells = [cell for cell, _, _ in rows]
    place = {name: number for number, name in enumerate(fitted.cells)}
    return _Table(
        metric,
        cells,
        np.array([place[cell.id] for cell in cells]),
        np.array([change for _, change, _ in rows]),
        np.array([baseline for _, _, baseline in rows]),
        min(len(gate.cells[cell.id].values(metric.name)) for cell in cells),
        fitted,
        gate.overrides.get(metric.name),
        gate.floors.get(metric.name),
    )


def _test(table: _Table, group: str, member: Mask, tail: float) -> Shift:
    metric, size = table.metric, len(table.fitted.cells)
    changes, chosen = np.zeros(size), np.zeros(size, bool)
    changes[table.places], chosen[table.places] = table.changes, member
    change, limit = shift_of(table.fitted.spread, changes, chosen, table.runs, tail)
    # the floor of a typical cell: one that is 12 ms slow of 100 ms is not all of them
    floor = FLOOR * float(np.median(floor_of(metric, table.baseline[member], table.floor)))
    tolerance = table.override or max(float(fraction_worse(metric, limit)), floor)
    worse = float(fraction_worse(metric, change))
    return Shift(
        metric.name,
        group,
        tuple(cell.id for cell, inside in zip(table.cells, member, strict=True) if inside),
        table.fitted.runs,
        float(towards_worse(metric, worse)),
        tolerance,
        worse > tolerance,
    )
