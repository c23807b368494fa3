"""What a run is judged by: the baseline's runs, their noise, and the user's wishes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pytest_llmperf.baseline.schema import ENOUGH_RUNS, CellBaseline, Run
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS, Metric, metrics_of
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.stats.distributions import normal_quantile, sidak
from pytest_llmperf.verdict import words
from pytest_llmperf.verdict.noise import fit_spread, quantile, tolerance

FALSE_ALARM = 0.01
"""Chance that any cell of a matrix in which nothing changed is called worse."""

NEEDS_BATCHES = ("total_tok_s", "itl_ms", "steps_s")
"""Averages over a window, which without a standard error of its own is too short to judge. Prefill
may come without one: the spread between runs has it too."""


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
class Gate:
    """Fixed for a run, so that one cell run again alone is judged as it was within its matrix."""

    profile: str
    cells: Mapping[str, CellBaseline]
    """Of the baseline, by cell id."""
    comparisons: int
    """Gated ones in the whole declared grid, whatever ``-k`` selected."""
    spreads: Mapping[tuple[str, str], tuple[float, float]]
    """(metric, cell id) -> variance between runs of its log, quantile that goes with it."""
    extra: tuple[str, ...] = ()
    """Metrics gated beyond the default ones."""
    overrides: Mapping[str, float] = field(default_factory=dict)
    """``metric@cell`` or ``metric`` -> tolerance; the cell's own counts first. It replaces noise,
    floor and limit: whoever sets it knows better."""
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
    ) -> Gate:
        """Take the noise from a baseline.

        Args:
            profile: name of the hardware profile.
            cells: the baseline's cells, by id.
            grid: the declared grid.
            settings: the run's; their tolerances go before the profile's.
            tolerances: the profile's own overrides.
            ci: cells without a baseline fail unless allowed or being stored.
            runs: facts of the baseline's runs.
        """
        comparisons = _count(cells, grid, settings.gate)
        return cls(
            profile,
            cells,
            comparisons,
            _fit(cells, sidak(FALSE_ALARM, comparisons)),
            settings.gate,
            {**(tolerances or {}), **settings.tolerances},
            ci and not settings.allow_new and not settings.update,
            settings.fail_on_improvement,
            _token_sources(cells, runs or {}),
        )

    def name_reference(self, number: int) -> str:
        """What a cell is compared with, of which there are ``number`` values, for people."""
        return words.stored_runs(self.profile, number)

    def gates(self, metric: Metric, cell: Cell) -> bool:
        """Whether the metric is judged in cells of this phase."""
        return _gates(metric, cell, self.extra)

    def tolerance(self, metric: Metric, cell: Cell, error: float | None) -> Tolerance:
        """How far the metric may move in a cell.

        Args:
            error: relative standard error of the window's estimate; None when it has none.
        """
        gated = self.gates(metric, cell)
        why = "" if gated else "not gated by default"
        override = self.overrides.get(f"{metric.name}@{cell.id}", self.overrides.get(metric.name))
        if override is not None:
            return Tolerance(override, gated, why=why)
        if error is None and metric.name in NEEDS_BATCHES:
            return Tolerance(None, False, why="the window is too short to know its own error")
        values = self.cells[cell.id].values(metric.name)
        variance, q = self.spreads.get(
            (metric.name, cell.id), (0.0, normal_quantile(sidak(FALSE_ALARM, self.comparisons)))
        )
        center = float(np.median(values))
        chance, fraction = map(
            float, tolerance(metric, q, variance, len(values), error or 0.0, center)
        )
        if gated and chance > metric.observed_beyond:
            gated, why = False, f"noise of {chance:.0%} is beyond {metric.observed_beyond:.0%}"
        return Tolerance(fraction, gated, len(values) < ENOUGH_RUNS, why)


def _gates(metric: Metric, cell: Cell, extra: tuple[str, ...]) -> bool:
    return cell.phase in metric.gated or (metric.name in extra and cell.phase in metric.phases)


def _count(cells: Mapping[str, CellBaseline], grid: Iterable[Cell], extra: tuple[str, ...]) -> int:
    return sum(
        _gates(metric, cell, extra) and bool(cells[cell.id].values(metric.name))
        for cell in grid
        if cell.id in cells
        for metric in metrics_of(cell.phase)
    )


def _token_sources(
    cells: Mapping[str, CellBaseline], runs: Mapping[str, Run]
) -> dict[str, frozenset[str]]:
    told = {name: (run.token_source or "").split(", ") for name, run in runs.items()}
    return {
        cell_id: frozenset(source for run in cell.runs for source in told.get(run, ()) if source)
        for cell_id, cell in cells.items()
    }


def _fit(
    cells: Mapping[str, CellBaseline], tail: float
) -> dict[tuple[str, str], tuple[float, float]]:
    spreads = {}
    for metric in METRICS.values():
        for phase in metric.phases:
            runs = {
                cell_id: values
                for cell_id, stored in cells.items()
                if Cell.parse(cell_id).phase == phase and (values := stored.values(metric.name))
            }
            if not runs:
                continue
            table = np.full((len(runs), max(map(len, runs.values()))), np.nan)
            for row, values in zip(table, runs.values(), strict=True):
                row[: len(values)] = [v if v > 0 else np.nan for v in values]
            variance, df = fit_spread(table, [Cell.parse(c).concurrency for c in runs])
            for cell_id, s2, q in zip(runs, variance, quantile(tail, df), strict=True):
                if np.isfinite(s2):
                    spreads[metric.name, cell_id] = (float(s2), float(q))
    return spreads
