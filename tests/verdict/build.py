"""Baselines and measurements for the tests of verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_llmperf.baseline.schema import CellBaseline
from pytest_llmperf.model.grid import Cell, Grid
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Gate

GRID = Grid((8192, 16384, 32768), (1, 4, 16, 64), (8192, 16384, 32768))
CELL = Cell("decode", 16384, 16)
PREFILL = Cell("prefill", 16384)

TRUTH = {
    "prefill": {"prefill_tok_s": 18000.0, "ttft_ms": 900.0},
    "decode": {
        "total_tok_s": 1600.0,
        "itl_ms": 10.0,
        "ttft_ms": 300.0,
        "steps_s": 800.0,
        "tokens_per_step": 2.0,
    },
}
AVERAGES = ("total_tok_s", "itl_ms", "steps_s")


def stored(cell: Cell, runs: int = 5, noise: float = 0.01, seed: int = 0) -> CellBaseline:
    """A cell of a baseline whose runs scatter around the truth, without any luck of the draw."""
    rng = np.random.default_rng((seed, *cell.order))
    values = {}
    for name, truth in TRUTH[cell.phase].items():
        z = np.linspace(-1.2, 1.2, runs) if runs > 1 else np.zeros(1)
        values[name] = [float(v) for v in truth * np.exp(noise * rng.permutation(z))]
    return CellBaseline(runs=[f"2026-0{i}" for i in range(1, runs + 1)], **values)


def gate(
    cells: dict[str, CellBaseline] | None = None,
    grid: Grid = GRID,
    of_profile: dict[str, float] | None = None,
    ci: bool = False,
    runs: int = 5,
    noise: float = 0.01,
    **settings: Any,
) -> Gate:
    """The gate of a whole grid: ``settings`` of the run, tolerances ``of_profile``."""
    if cells is None:
        cells = {cell.id: stored(cell, runs, noise) for cell in grid}
    return Gate.build("box", cells, grid, Settings(**settings), of_profile, ci)


def measured(
    cell: Cell = CELL, speed: float = 1.0, acceptance: float = 1.0, **fields: Any
) -> Measurement:
    """A valid attempt: the truth, with the engine and the acceptance of drafts scaled."""
    truth = dict(TRUTH[cell.phase])
    for name in truth:
        if name in ("prefill_tok_s", "total_tok_s", "steps_s"):
            truth[name] *= speed
        elif name in ("itl_ms", "ttft_ms"):
            truth[name] /= speed
        if name in ("total_tok_s", "tokens_per_step"):
            truth[name] *= acceptance
        elif name == "itl_ms":
            truth[name] /= acceptance
    errors = {name: 0.003 * value for name, value in truth.items() if name in AVERAGES}
    known = {
        "phase": cell.phase,
        "context": cell.context,
        "concurrency": cell.concurrency,
        "status": "valid",
        "started": "2026-01-01T00:00:00Z",
        "method": 1,
        "std_errors": errors,
    }
    return Measurement(**{**known, **truth, **fields})


def unchecked(measurement: Measurement, **fields: Any) -> Measurement:
    """The same with values that the model itself would refuse, as a fault elsewhere might leave."""
    return measurement.model_copy(update=fields)


def verdict_of(record: Any, metric: str) -> Any:
    """The comparison of one metric."""
    return next(c for c in record.comparisons if c.metric == metric)


def speeds(*values: float) -> Sequence[Measurement]:
    """Attempts at those speeds."""
    return [measured(speed=v) for v in values]
