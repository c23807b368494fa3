"""The Monte-Carlo runs the code that judges, and a small one holds the promised rates."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_llmperf.baseline.schema import CellBaseline
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Gate, judge, judge_matrix, needs_confirmation

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "montecarlo.py"


@pytest.fixture(scope="module")
def mc() -> ModuleType:
    spec = importlib.util.spec_from_file_location("montecarlo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_arrays_are_judged_as_single_cells_are(mc: ModuleType) -> None:
    """Matrix by matrix and cell by cell, with slow cells among them: the same verdicts."""
    slower = np.where(np.arange(len(mc.CELLS)) % 3, 0.06, 0.0)
    drawn = mc.draw(mc.World(0.01), 3, slower, np.random.default_rng(5))
    found = mc.judge(drawn)
    assert 0 < found.failed.sum() < found.failed.size
    for b in range(3):
        cells = {
            cell.id: CellBaseline(
                runs=[f"r{r}" for r in range(5)],
                **{d.metric.name: d.baseline[b, c].tolist() for d in drawn},
            )
            for c, cell in enumerate(mc.CELLS)
        }
        gate = Gate.build("box", cells, mc.CELLS, Settings())
        records = []
        for c, cell in enumerate(mc.CELLS):
            attempts = [
                Measurement(
                    phase="decode",
                    context=cell.context,
                    concurrency=cell.concurrency,
                    status="valid",
                    started="",
                    method=1,
                    std_errors={d.metric.name: d.errors[b, c] * d.attempts[b, c, a] for d in drawn},
                    **{d.metric.name: d.attempts[b, c, a] for d in drawn},
                )
                for a in range(3)
            ]
            record = judge(cell, attempts[:1], gate)
            if needs_confirmation(record):
                record = judge(cell, attempts, gate)
            assert record.outcome.failed == found.failed[b, c]
            assert any(x.gated for x in record.comparisons) == found.gated[b, c]
            records.append(record)
        assert bool(judge_matrix(records, gate).worse) == found.matrix[b]


def test_a_quiet_matrix_is_quiet(mc: ModuleType) -> None:
    """At most 1 % of matrices with a false verdict is promised; 1,500 with a fixed seed."""
    found = mc.simulate(mc.World(0.01), 1500, mc.everywhere(0), seed=11)
    assert found.failed.any(axis=-1).mean() <= 0.01
    assert found.matrix.mean() <= 0.01
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
    """1 % a release against a frozen baseline, within eight."""
    assert np.isfinite(mc.creep(mc.World(0.01), 100, seed=14)).all()


def test_the_upper_bound_is_wilsons(mc: ModuleType) -> None:
    """No false alarm in 300 leaves up to z^2 / (n + z^2) = 0.9 %; 100 in 10,000 up to 1.18 %."""
    assert mc.upper_95(0.0, 300) == pytest.approx(0.00894, abs=1e-5)
    assert mc.upper_95(0.01, 10_000) == pytest.approx(0.01177, abs=1e-5)
