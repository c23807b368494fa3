"""What a run is judged by: the baseline's runs, their noise, and the user's wishes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_llmperf.baseline.schema import ENOUGH_RUNS, CellBaseline, Run
from pytest_llmperf.model.grid import Cell, Phase
from pytest_llmperf.model.keys import ANY, applies
from pytest_llmperf.model.metrics import METRICS, Metric, metrics_of
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.stats.distributions import sidak
from pytest_llmperf.verdict import noise, words
from pytest_llmperf.verdict.spread import Spread, expected_spread, fit, successive

ALONE, AMONG = 0.001, 0.006
"""Chance that any cell of a matrix in which nothing changed is called worse: by itself, and held
against the other cells of its run. What is left of 1 % is the matrix's own: ``matrix``."""

ALONE_RUN = 0.0128
"""A cell by itself cannot tell a run's effect from its own, and expects at least so much of it:
standard deviation of logs."""

NEEDS_BATCHES = ("total_tok_s", "itl_ms", "steps_s")
"""Averages over a window, which without a standard error of its own is too short to judge. Prefill
may come without one: the spread between runs has it too."""

SPECULATIVE = 1.05
"""Tokens per step from which their number depends on the text."""


@dataclass(frozen=True)
class Tolerance:
    """How far a metric may move. Fractions of the baseline."""

    fraction: float | None
    """None where it cannot be known."""
    gated: bool
    weak: bool = False
    why: str = ""
    """Why it is not gated, for people."""


@dataclass(frozen=True)
class Neighbour:
    """How far the metric moved in another cell of the run."""

    change: float
    """Of its log, towards worse."""
    variance: float


@dataclass(frozen=True)
class Noise:
    """Of one metric in one cell: variances of logs, each with its degrees of freedom."""

    cell: tuple[float, float]
    run: tuple[float, float]


@dataclass(frozen=True)
class Fitted:
    """The noise of one metric over the cells of a phase."""

    cells: tuple[str, ...]
    spread: Spread
    noise: Mapping[str, Noise]

    @property
    def runs(self) -> int:
        """Runs that tell of it."""
        return int(np.isfinite(self.spread.steps).any(axis=0).sum()) + 1


@dataclass(frozen=True)
class Gate:
    """Fixed for a run, so that one cell run again alone is judged as it was within its matrix."""

    profile: str
    cells: Mapping[str, CellBaseline]
    """Of the baseline, by cell id."""
    comparisons: int
    """Gated ones in the whole declared grid, whatever ``-k`` selected."""
    fitted: Mapping[tuple[str, Phase], Fitted] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    """Metrics gated beyond the default ones."""
    overrides: Mapping[str, float] = field(default_factory=dict)
    """``metric@cell`` or ``metric`` -> tolerance; the cell's own counts first. It replaces noise,
    floor and limit: whoever sets it knows better."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """Metric -> smallest change that counts, in its unit, in place of the table's."""
    watched: tuple[str, ...] = ()
    """Keys (``model.keys``) of what is reported when worse, and fails nothing."""
    fail_on_new: bool = False
    fail_on_improvement: bool = False
    token_sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """How the runs of a cell counted their tokens, as far as they say."""

    @classmethod
    def build(
        cls,
        profile: str,
        cells: Mapping[str, CellBaseline],
        grid: Iterable[Cell],
        settings: Settings,
        tolerances: Mapping[str, float] | None = None,
        ci: bool = False,
        runs: Mapping[str, Run] | None = None,
        floors: Mapping[str, float] | None = None,
        watched: Iterable[str] = (),
    ) -> Gate:
        """Take the noise from a baseline.

        Args:
            profile: name of the hardware profile.
            cells: the baseline's cells, by id.
            grid: the declared grid.
            settings: the run's; their tolerances go before the profile's.
            tolerances: the profile's own overrides.
            ci: cells without a baseline fail unless allowed or being stored.
            runs: facts of the baseline's runs, in their order.
            floors: the profile's own.
            watched: the profile's keys of what only warns.
        """
        made = cls(
            profile,
            cells,
            0,
            _fit_all(cells, list(runs or {})),
            settings.gate,
            {**(tolerances or {}), **settings.tolerances},
            dict(floors or {}),
            tuple(watched),
            ci and not settings.allow_new and not settings.update,
            settings.fail_on_improvement,
            _token_sources(cells, runs or {}),
        )
        return replace(made, comparisons=made._count(grid))

    def name_reference(self, number: int) -> str:
        """What a cell is compared with, of which there are ``number`` values, for people."""
        return words.stored_runs(self.profile, number)

    def gates(self, metric: Metric, cell: Cell) -> bool:
        """Whether the metric is judged in the cell: by default, by option, or to be watched."""
        by_option = metric.name in self.extra and cell.phase in metric.phases
        by_name = any(
            applies(key, metric.name, cell) for key in self.watched if not key.startswith(ANY)
        )
        return cell.phase in metric.gated or by_option or by_name

    def watches(self, metric: Metric, cell: Cell) -> bool:
        """Whether it only warns when it is worse."""
        return any(applies(key, metric.name, cell) for key in self.watched)

    def override(self, metric: Metric, cell: Cell) -> float | None:
        """The tolerance that the user or the profile set for it."""
        return self.overrides.get(f"{metric.name}@{cell.id}", self.overrides.get(metric.name))

    def variance(self, metric: Metric, cell: Cell, error: float) -> float:
        """Of a cell's change of a log, beside what its run shares."""
        known = self.fitted[metric.name, cell.phase].noise[cell.id]
        n = len(self.cells[cell.id].values(metric.name))
        return float(noise.own_variance(known.cell[0], n, error))

    def tolerance(
        self,
        metric: Metric,
        cell: Cell,
        error: float | None,
        company: Sequence[Neighbour] = (),
    ) -> Tolerance:
        """How far the metric may move in a cell: by itself, or held against others of the run.

        Whichever is less; one that all cells share is the matrix's to judge.

        Args:
            error: relative standard error of the window's estimate; None when it has none.
            company: what the metric did in the other cells of the same server start.
        """
        gated = self.gates(metric, cell)
        why = "" if gated else "not gated by default"
        override = self.override(metric, cell)
        if override is not None:
            return Tolerance(override, gated, why=why)
        if error is None and metric.name in NEEDS_BATCHES:
            return Tolerance(None, False, why="the window is too short to know its own error")
        stored = self.cells[cell.id]
        values = stored.values(metric.name)
        known, n = self.fitted[metric.name, cell.phase].noise[cell.id], len(values)
        log_limit = noise.alone(
            sidak(ALONE, self.comparisons), known.cell, known.run, n, error or 0.0
        )
        shift, variance = noise.common_shift(
            np.array([other.change for other in company]),
            np.array([other.variance for other in company]),
        )
        if math.isfinite(variance):
            tail = sidak(AMONG, self.comparisons)
            beside = noise.among(tail, known.cell, n, error or 0.0, (shift, variance))
            log_limit = np.minimum(log_limit, beside)
        chance = float(noise.fraction_worse(metric, log_limit))
        middle, own_floor = float(np.median(values)), self.floors.get(metric.name)
        floor = float(noise.floor_of(metric, middle, own_floor))
        if gated and chance > metric.observed_beyond:
            gated, why = False, f"noise of {chance:.0%} is beyond {metric.observed_beyond:.0%}"
        return Tolerance(
            max(chance, floor), gated, len(stored.history(metric.name)) < ENOUGH_RUNS, why
        )

    def _count(self, grid: Iterable[Cell]) -> int:
        """Comparisons that can fail a cell."""
        return sum(
            self.gates(metric, cell) and not self.watches(metric, cell)
            for cell in grid
            if cell.id in self.cells
            for metric in metrics_of(cell.phase)
            if self.cells[cell.id].values(metric.name)
        )


def _token_sources(
    cells: Mapping[str, CellBaseline], runs: Mapping[str, Run]
) -> dict[str, frozenset[str]]:
    told = {name: (run.token_source or "").split(", ") for name, run in runs.items()}
    return {
        cell_id: frozenset(source for run in cell.runs for source in told.get(run, ()) if source)
        for cell_id, cell in cells.items()
    }


def _fit_all(
    cells: Mapping[str, CellBaseline], order: Sequence[str]
) -> dict[tuple[str, Phase], Fitted]:
    found = {}
    for metric in METRICS.values():
        for phase in metric.phases:
            chosen = {
                cell: stored
                for name, stored in cells.items()
                if (cell := Cell.parse(name)).phase == phase and stored.values(metric.name)
            }
            if chosen:
                found[metric.name, phase] = _fit_one(metric, chosen, order)
    return found


def _fit_one(metric: Metric, cells: Mapping[Cell, CellBaseline], order: Sequence[str]) -> Fitted:
    named = dict.fromkeys([*order, *(run for stored in cells.values() for run in stored.runs)])
    column = {run: number for number, run in enumerate(named)}
    logs = np.full((len(cells), len(column)), np.nan)
    levels = np.zeros(logs.shape, int)
    for row, stored in enumerate(cells.values()):
        for run, value, level in stored.history(metric.name):
            logs[row, column[run]] = math.log(value) if value > 0 else math.nan
            levels[row, column[run]] = level
    decode = [cell.concurrency if cell.phase == "decode" else 0 for cell in cells]
    speculative = [_is_speculative(stored) for stored in cells.values()]
    prior = expected_spread(metric, decode, speculative)
    spread = fit(successive(logs, levels), decode, [cell.context for cell in cells], prior)
    effect = spread.of_mean(1 / spread.cell, ALONE_RUN)
    noises = {
        cell.id: Noise((float(s2), float(df)), (float(effect[0]), float(effect[1])))
        for cell, s2, df in zip(cells, spread.cell, spread.cell_df, strict=True)
    }
    return Fitted(tuple(noises), spread, noises)


def _is_speculative(stored: CellBaseline) -> bool:
    values = stored.values("tokens_per_step")
    return bool(values) and float(np.median(values)) > SPECULATIVE
