"""All cells together: a change too small for any cell may be certain over many. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_llmperf.baseline.schema import ENOUGH_RUNS
from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.model.result import CellRecord
from pytest_llmperf.stats.distributions import Array, sidak, t_quantile
from pytest_llmperf.verdict.gate import Gate
from pytest_llmperf.verdict.noise import floor_of, fraction_worse

Mask = NDArray[np.bool_]

FALSE_ALARM = 0.008
"""Chance that a matrix in which nothing changed is called worse: 1 %, less what it costs that the
weights of the cells are estimated from the same runs (seen in ``benchmarks/montecarlo.py``)."""

WHOLE = 0.75
"""Share of the allowed chance of a false alarm that the tests over all cells get; the groups share
the rest. A slowdown everywhere is what cells cannot show one by one."""

FLOOR = 0.5
"""Smallest shift that counts, as a share of the metric's floor for one cell."""


@dataclass(frozen=True)
class Shift:
    """One metric over one group of cells."""

    metric: str
    group: str
    """For people: "all contexts, concurrency >= 16"."""
    cells: int
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
            f"(tolerance {100 * self.tolerance:.1f} %, {self.cells} cells, {self.runs} runs)"
            f"{' WORSE' if self.worse else ''}"
        )


@dataclass(frozen=True)
class MatrixVerdict:
    """Every test made, the widest groups first."""

    shifts: tuple[Shift, ...]
    why: str = ""
    """Why nothing could be tested; empty if something was."""

    @property
    def worse(self) -> tuple[Shift, ...]:
        """What got worse."""
        return tuple(shift for shift in self.shifts if shift.worse)

    @property
    def message(self) -> str:
        """The metrics that got worse, with every group of each; empty when none did."""
        bad = {shift.metric for shift in self.worse}
        lines = [shift.line for shift in self.shifts if shift.metric in bad]
        return "\n".join(
            ["The cells together are worse than their baseline:", *lines] if bad else []
        )


def judge_matrix(records: Sequence[CellRecord], gate: Gate) -> MatrixVerdict:
    """Test the judged metrics over all cells, and over halves of the contexts and concurrencies.

    The chance that any of the tests is a false alarm is below 1 %. Cells without three runs, or
    without a value that compares, stay out; the runs are those that all the others have. Where
    those are too few, the cells whose runs the fewest others have stay out too.
    """
    tables = [
        table
        for phase in ("decode", "prefill")
        for metric in METRICS.values()
        if (table := _tabulate(metric, phase, records, gate))
    ]
    if not tables:
        return MatrixVerdict((), f"no metric has {ENOUGH_RUNS} runs in common to two cells or more")
    parted = [(table, groups(table.cells)) for table in tables]
    whole, part = tails(len(tables), sum(len(parts) - 1 for _, parts in parted))
    return MatrixVerdict(
        tuple(
            _test(table, name, member, part if number else whole)
            for table, parts in parted
            for number, (name, member) in enumerate(parts)
        )
    )


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


def tails(metrics: int, parts: int) -> tuple[float, float]:
    """Chance of a false alarm for each test over all cells, and for each over a part of them."""
    return (
        sidak(FALSE_ALARM * WHOLE, metrics),
        sidak(FALSE_ALARM * (1 - WHOLE), parts),
    )


def shift_of(
    metric: Metric, baseline: Array, measured: Array, variance: Array, tail: float
) -> tuple[Array, Array]:
    """How far a group of cells moved together, and how far it may, as fractions.

    The logs of a run are averaged over the cells, weighted by 1 / variance; the new run's mean is
    tested against those of the baseline's n runs by Student's t for one further observation,
    ``(x - mean) / (s sqrt(1 + 1/n))`` with n - 1 degrees of freedom (a prediction interval: Hahn
    and Meeker 1991, section 4.7). Whatever cells of a run have in common is in s, so that they
    need not be independent: a test over cells would take them for witnesses.

    Args:
        baseline: (..., cells, runs).
        measured: (..., cells).
        variance: (..., cells), between runs, of logs; only its proportions matter.
        tail: chance of a false alarm.
    """
    weights = 1 / variance
    weights = weights / weights.sum(axis=-1, keepdims=True)
    runs = (np.log(baseline) * weights[..., None]).sum(axis=-2)
    n = runs.shape[-1]
    center = runs.mean(axis=-1)
    change = (np.log(measured) * weights).sum(axis=-1) - center
    limit = t_quantile(tail, n - 1) * runs.std(axis=-1, ddof=1) * np.sqrt(1 + 1 / n)
    floor = FLOOR * floor_of(metric, np.exp(center))
    return np.expm1(change), np.maximum(fraction_worse(metric, limit), floor)


def towards_worse(metric: Metric, change: ArrayLike) -> Array:
    """The size of a signed fraction of change, positive where it is for the worse."""
    return np.asarray(change) * (-1 if metric.better == "higher" else 1)


@dataclass(frozen=True)
class _Table:
    metric: Metric
    cells: Sequence[Cell]
    baseline: Array
    measured: Array
    variance: Array


def _tabulate(
    metric: Metric, phase: str, records: Sequence[CellRecord], gate: Gate
) -> _Table | None:
    """The values of one metric, cells by runs; None where there is too little to test."""
    rows: list[tuple[Cell, float, dict[str, float]]] = []
    for record in records:
        cell = Cell.parse(record.cell)
        if cell.phase != phase or not gate.gates(metric, cell):
            continue
        found = next((c for c in record.comparisons if c.metric == metric.name), None)
        if found is None or found.tolerance is None or found.measured is None:
            continue
        stored = gate.cells[cell.id]
        every = dict(stored.lists())[metric.name]
        runs = {run: v for run, v in zip(stored.runs, every, strict=True) if v}
        if len(runs) >= ENOUGH_RUNS:
            rows.append((cell, found.measured, runs))
    common: list[str] = []
    while len(rows) > 1:
        held = Counter(run for _, _, runs in rows for run in runs)
        common = [run for run, cells in held.items() if cells == len(rows)]
        if len(common) >= ENOUGH_RUNS:
            break
        # a cell measured in sessions of its own must not cost all the others their test
        rows.remove(min(rows, key=lambda row: sum(held[run] for run in row[2]) / len(row[2])))
    else:
        return None
    return _Table(
        metric,
        [cell for cell, _, _ in rows],
        np.array([[runs[run] for run in common] for _, _, runs in rows], float),
        np.array([measured for _, measured, _ in rows]),
        np.array([gate.spreads[metric.name, cell.id][0] for cell, _, _ in rows]),
    )


def _test(table: _Table, group: str, member: Mask, tail: float) -> Shift:
    change, tolerance = shift_of(
        table.metric,
        table.baseline[member],
        table.measured[member],
        table.variance[member],
        tail,
    )
    return Shift(
        table.metric.name,
        group,
        int(member.sum()),
        table.baseline.shape[-1],
        float(change),
        float(tolerance),
        bool(towards_worse(table.metric, change) > tolerance),
    )
