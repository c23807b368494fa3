"""The matrix as a whole: small shifts of many cells."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.model.grid import Cell, Grid
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.verdict import Gate, MatrixVerdict, judge, judge_matrix
from pytest_llmperf.verdict.matrix import groups, shift_of
from tests.verdict.build import GRID, gate, measured, stored


def verdict(known: Gate, slow: dict[Cell, float]) -> MatrixVerdict:
    """Judge the grid with some cells at a fraction of their speed."""
    return judge_matrix(
        [judge(cell, [measured(cell, slow.get(cell, 1.0))], known) for cell in GRID], known
    )


def test_nothing_changed_is_nothing() -> None:
    """No shift, no message."""
    found = verdict(gate(), {})
    assert found.worse == ()
    assert found.message == ""
    assert found.why == ""


def test_all_cells_a_little_slower_is_certain_though_no_cell_fails() -> None:
    """2.5 % everywhere, below every cell's floor."""
    known = gate()
    slow = dict.fromkeys(GRID, 0.975)
    for cell in GRID:
        assert judge(cell, [measured(cell, 0.975)], known).outcome.value == "PASS"
    found = verdict(known, slow)
    assert {s.metric for s in found.worse} >= {"itl_ms", "steps_s"}
    whole = next(s for s in found.worse if (s.metric, s.group) == ("itl_ms", "all cells"))
    assert whole.change == pytest.approx(0.0256, abs=0.004)
    assert (whole.cells, whole.runs) == (12, 5)
    assert "all cells: ITL +2." in found.message


def test_a_slowdown_at_high_concurrency_is_named() -> None:
    """The group says where; its other half is shown beside it, unchanged."""
    slow = {cell: 0.92 for cell in GRID if cell.concurrency >= 16}
    found = verdict(gate(), slow)
    worse = {s.group for s in found.worse if s.metric == "itl_ms"}
    assert "all contexts, concurrency >= 16" in worse
    assert "all contexts, concurrency <= 4" not in worse
    assert "all contexts, concurrency >= 16: ITL +8." in found.message
    assert "all contexts, concurrency <= 4: ITL +0." in found.message.replace("-0.", "+0.")


def test_faster_everywhere_is_not_worse() -> None:
    """Direction is the metric's own."""
    assert verdict(gate(), dict.fromkeys(GRID, 1.1)).worse == ()


def test_noise_that_a_run_shares_is_not_taken_for_forty_witnesses() -> None:
    """Every cell of run i moves together by 2 %; a new run 2 % down is one more such run."""
    cells = {}
    for cell in GRID:
        base = stored(cell, noise=0.0)
        swing = np.exp(0.02 * np.array([-1.2, 0.9, -0.4, 1.3, -0.6]))
        moved = {name: [v * s for v, s in zip(values, swing)] for name, values in base.lists()}  # noqa: B905
        cells[cell.id] = base.model_copy(update=moved)
    assert verdict(gate(cells), dict.fromkeys(GRID, 0.98)).worse == ()


@pytest.mark.parametrize("runs", [1, 2])
def test_fewer_than_three_runs_are_no_test(runs: int) -> None:
    """Said, not passed over."""
    found = verdict(gate(runs=runs), dict.fromkeys(GRID, 0.8))
    assert found.shifts == ()
    assert "3 runs" in found.why


def test_runs_are_aligned_by_their_id() -> None:
    """Cells with other runs beside the common ones: those of all cells are used."""
    cells = {cell.id: stored(cell) for cell in GRID}
    first = next(iter(GRID.decode_cells()))
    longer = stored(first, runs=6)
    cells[first.id] = longer.model_copy(update={"runs": ["2025-12", *longer.runs[:5]]})
    found = verdict(gate(cells), {})
    assert {s.runs for s in found.shifts if s.metric == "itl_ms"} == {5}


def test_a_new_cell_with_one_run_stays_out() -> None:
    """It must not take the test from the others."""
    cells = {cell.id: stored(cell) for cell in GRID}
    first = next(iter(GRID.decode_cells()))
    cells[first.id] = stored(first, runs=1)
    found = verdict(gate(cells), {})
    assert next(s for s in found.shifts if s.metric == "itl_ms").cells == 11


def test_a_cell_measured_in_sessions_of_its_own_stays_out() -> None:
    """Three runs, but none that another cell has: the others are tested without it."""
    cells = {cell.id: stored(cell) for cell in GRID}
    first = next(iter(GRID.decode_cells()))
    cells[first.id] = stored(first, runs=3).model_copy(update={"runs": ["a", "b", "c"]})
    found = verdict(gate(cells), dict.fromkeys(GRID, 0.975))
    whole = next(s for s in found.worse if (s.metric, s.group) == ("itl_ms", "all cells"))
    assert (whole.cells, whole.runs) == (11, 5)


def test_groups_are_halves_of_each_axis() -> None:
    """With names for people; a grid with one level on an axis has no halves there."""
    names = [name for name, _ in groups(GRID.decode_cells())]
    assert names == [
        "all cells",
        "all contexts, concurrency <= 4",
        "all contexts, concurrency >= 16",
        "contexts 8K, all concurrencies",
        "contexts >= 16K, all concurrencies",
    ]
    assert [n for n, _ in groups(Grid((8192,), (1, 2), ()).decode_cells())] == ["all cells"]


def test_the_statistic_is_a_prediction_interval_of_the_run_means() -> None:
    """By hand for two equal cells and three runs."""
    metric = METRICS["itl_ms"]
    logs = np.array([[0.00, 0.02, 0.04], [0.02, 0.02, 0.08]])
    change, limit = shift_of(metric, np.exp(logs), np.exp([0.1, 0.2]), np.ones(2), 0.025)
    means = [0.01, 0.02, 0.06]
    assert float(change) == pytest.approx(np.expm1(0.15 - 0.03))
    by_hand = 4.302653 * np.std(means, ddof=1) * np.sqrt(1 + 1 / 3)
    assert float(limit) == pytest.approx(np.expm1(by_hand), rel=1e-5)


def test_the_matrix_has_a_floor_too() -> None:
    """Half of a cell's: runs without any noise do not make 1 % a slowdown, nor 5 ms of 40 ms."""
    flat = np.zeros((2, 3))
    itl = shift_of(METRICS["itl_ms"], np.exp(flat) * 40, np.full(2, 40.4), np.ones(2), 0.01)
    ttft = shift_of(METRICS["ttft_ms"], np.exp(flat) * 40, np.full(2, 45.0), np.ones(2), 0.01)
    assert float(itl[1]) == pytest.approx(0.02)
    assert float(ttft[1]) == pytest.approx(0.25)
