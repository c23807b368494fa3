"""The Monte-Carlo runs the code that judges, and a small one holds the promised rates."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.baseline.schema import CellBaseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, Measurement
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Gate, judge, judge_matrix, needs_confirmation

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "montecarlo.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("montecarlo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mc() -> ModuleType:
    return _load()


@pytest.mark.parametrize("starts", [False, True])
def test_arrays_are_judged_as_single_cells_are(mc: ModuleType, starts: bool) -> None:
    """Matrix by matrix and cell by cell, with slow cells among them: the same verdicts."""
    slower = np.where(np.arange(len(mc.CELLS)) % 7 == 3, 0.065, 0.0)
    drawn = mc.draw(mc.World(0.01, starts=starts), 2, slower, np.random.default_rng(5))
    found = mc.judge(drawn, starts)
    assert 0 < found.failed.sum() < found.failed.size
    for b in range(2):
        cells = {
            cell.id: CellBaseline(
                runs=[f"r{r}" for r in range(5)],
                **{d.metric.name: d.baseline[b, c].tolist() for d in drawn},
            )
            for c, cell in enumerate(mc.CELLS)
        }
        gate = Gate.build("box", cells, mc.CELLS, Settings())
        records: list[CellRecord] = []
        start, left = 0, mc.RESTARTS if starts else 0
        for c, cell in enumerate(mc.CELLS):
            attempts = [_measure(drawn, cell, (b, c, start, 0), start)]
            record = judge(cell, attempts, gate, records)
            again, begun = 1, needs_confirmation(record)
            while begun and len(attempts) < mc.MEASUREMENTS:
                if needs_confirmation(record) and left:
                    start, left, again = start + 1, left - 1, 0
                attempts.append(_measure(drawn, cell, (b, c, start, again), start))
                record, again = judge(cell, attempts, gate, records), again + 1
            assert record.outcome.failed == found.failed[b, c], cell
            records.append(record)
        if not starts:
            assert bool(judge_matrix(records, gate).worse) == found.matrix[b]


def _measure(
    drawn: list[Any], cell: Cell, place: tuple[int, int, int, int], start: int
) -> Measurement:
    values = {d.metric.name: float(d.attempts[place]) for d in drawn}
    errors = {d.metric.name: float(d.errors[place[:2]]) * values[d.metric.name] for d in drawn}
    return Measurement(
        phase="decode",
        context=cell.context,
        concurrency=cell.concurrency,
        status="valid",
        started="",
        method=1,
        start=start + 1,
        std_errors=errors,
        **values,
    )


def test_a_quiet_matrix_is_quiet(mc: ModuleType) -> None:
    """At most 1 % of matrices with a false verdict is promised; 1,500 with a fixed seed."""
    found = mc.simulate(mc.World(0.01), 1500, mc.everywhere(0), seed=11)
    assert found.any.mean() <= 0.01
    assert found.gated.mean() > 0.9


@pytest.mark.parametrize(("slower", "least"), [(0.05, 0.6), (0.07, 0.95), (0.10, 0.99)])
def test_one_slow_cell_is_caught(mc: ModuleType, slower: float, least: float) -> None:
    """Of an ordinary cell at 1 % noise."""
    found = mc.simulate(mc.World(0.01), 500, mc.one_cell(slower), seed=12)
    assert found.failed[:, mc.ORDINARY].mean() >= least


def test_a_little_slower_everywhere_is_caught_by_the_matrix(mc: ModuleType) -> None:
    """4 % at 1 % noise."""
    found = mc.simulate(mc.World(0.01), 500, mc.everywhere(0.04), seed=13)
    assert found.matrix.mean() >= 0.9


def test_a_creep_is_caught_before_it_has_gone_far(mc: ModuleType) -> None:
    """1 % a release, every one added to the baseline: within eight; and the noise it leaves behind
    does not hide a slow cell."""
    caught, after = mc.creep(mc.World(0.01), 100, seed=14)
    assert np.isfinite(caught).mean() >= 0.95
    assert after >= 0.6


@pytest.mark.parametrize(
    "world",
    [
        "t3, second start",
        "1 start of 10 is 4 % slow, second start",
        "this run is 2 % slow, second start",
        "throttled windows",
        "acceptance by prompt",
        "40 % slow after idling",
    ],
)
def test_a_world_that_only_looks_slow_is_quiet(mc: ModuleType, world: str) -> None:
    """200 matrices with a fixed seed; at most 2 of 100 is what 1 % allows by chance."""
    found = mc.simulate(mc.WORLDS[world], 200, mc.everywhere(0), seed=15)
    assert found.any.mean() <= 0.02


def test_wilsons_interval() -> None:
    """No false alarm in 300 leaves up to z^2 / (n + z^2); half of 100 lies in 40 to 60 %."""
    module = _load()
    assert module.wilson(0.0, 300)[1] == pytest.approx(1.96**2 / (300 + 1.96**2))
    assert module.wilson(0.5, 100) == pytest.approx((0.404, 0.596), abs=1e-3)
