"""What a run is judged by: the baseline's runs, their noise, and the user's wishes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_llmperf.baseline.schema import CellBaseline
from pytest_llmperf.grid import Cell
from pytest_llmperf.metrics import METRICS, Metric, metrics_of
from pytest_llmperf.settings import Settings
from pytest_llmperf.stats.distributions import sidak
from pytest_llmperf.verdict.noise import ENOUGH_RUNS, fit_spread, tolerance

FALSE_ALARM = 0.01
"""Chance that any cell of a matrix in which nothing changed is called worse."""

NEEDS_BATCHES = ("total_tok_s", "itl_ms", "steps_s")
"""Averages over the window: without a standard error of its own, a window is too short to judge.

TTFT and prefill are medians over a few requests that share one queue, with no error to be had from
one window; the spread between runs holds it already, and an error that is given is added.
"""


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
    """(metric, cell id) -> variance between runs of its log, degrees of freedom."""
    extra: tuple[str, ...] = ()
    """Metrics gated beyond the default ones."""
    overrides: Mapping[str, float] = ()  # type: ignore[assignment]
    """``metric@cell`` or ``metric`` -> tolerance; the cell's own counts first."""
    fail_on_new: bool = False
    fail_on_improvement: bool = False

    @classmethod
    def build(
        cls,
        profile: str,
        cells: Mapping[str, CellBaseline],
        grid: Iterable[Cell],
        settings: Settings,
        tolerances: Mapping[str, float] | None = None,
        ci: bool = False,
    ) -> Gate:
        """Take the noise from a baseline.

        Args:
            profile: name of the hardware profile.
            cells: the baseline's cells, by id.
            grid: the declared grid.
            settings: the run's; their tolerances go before the profile's.
            tolerances: the profile's own overrides.
            ci: cells without a baseline fail unless allowed or being stored.
        """
        return cls(
            profile,
            cells,
            _count(cells, grid, settings.gate),
            _fit(cells),
            settings.gate,
            {**(tolerances or {}), **settings.tolerances},
            ci and not settings.allow_new and not settings.update,
            settings.fail_on_improvement,
        )

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
        variance, df = self.spreads.get((metric.name, cell.id), (0.0, 0.0))
        chance, fraction = (
            float(limit)
            for limit in tolerance(
                metric,
                sidak(FALSE_ALARM, self.comparisons),
                variance,
                df,
                len(values),
                error or 0.0,
                float(np.median(values)),
            )
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


def _fit(cells: Mapping[str, CellBaseline]) -> dict[tuple[str, str], tuple[float, float]]:
    spreads = {}
    for metric in METRICS.values():
        for phase in metric.phases:
            runs = {
                cell_id: values
                for cell_id, stored in cells.items()
                if Cell.parse(cell_id).phase == phase and (values := stored.values(metric.name))
            }
            if not runs or not all(v > 0 for values in runs.values() for v in values):
                continue
            table = np.full((len(runs), max(map(len, runs.values()))), np.nan)
            for row, values in zip(table, runs.values(), strict=True):
                row[: len(values)] = values
            variance, df = fit_spread(table, [Cell.parse(c).concurrency for c in runs])
            for cell_id, s2, nu in zip(runs, variance, df, strict=True):
                if nu > 0:
                    spreads[metric.name, cell_id] = (float(s2), float(nu))
    return spreads
