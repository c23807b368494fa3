"""The matrix as a whole: small shifts of many cells."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.model.grid import Cell, Grid
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.stats.distributions import t_quantile
from pytest_llmperf.verdict import (
    Gate,
    MatrixVerdict,
    choose_sample,
    confirm,
    judge,
    judge_matrix,
)
from pytest_llmperf.verdict.matrix import groups, shift_of
from pytest_llmperf.verdict.spread import fit
from tests.verdict.build import CELL, GRID, gate, measured, stored


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
    """4 % everywhere, which noise explains in any one cell."""
    known = gate()
    slow = dict.fromkeys(GRID, 0.96)
    for cell in GRID:
        assert judge(cell, [measured(cell, 0.96)], known).outcome.value == "PASS"
    found = verdict(known, slow)
    assert {s.metric for s in found.worse} >= {"steps_s"}
    whole = next(s for s in found.worse if (s.metric, s.group) == ("steps_s", "all cells"))
    assert whole.change == pytest.approx(-0.04, abs=0.004)
    assert (len(whole.members), whole.runs) == (12, 5)
    assert "all cells: steps/s -4." in found.message or "all cells: steps/s -3.9" in found.message


def test_a_slowdown_at_high_concurrency_is_named() -> None:
    """The group says where; its other half is shown beside it, unchanged."""
    slow = {cell: 0.92 for cell in GRID if cell.concurrency >= 16}
    found = verdict(gate(), slow)
    worse = {s.group for s in found.worse if s.metric == "steps_s"}
    assert "all contexts, concurrency >= 16" in worse
    assert "all contexts, concurrency <= 4" not in worse
    assert "all contexts, concurrency >= 16: steps/s -8." in found.message.replace("-7.9", "-8.")
    assert "all contexts, concurrency <= 4: steps/s" in found.message


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


def test_one_run_is_no_test() -> None:
    """Said, not passed over."""
    found = verdict(gate(runs=1), dict.fromkeys(GRID, 0.8))
    assert found.shifts == ()
    assert "2 runs" in found.why


def test_two_runs_are_enough_for_a_shift_of_everything() -> None:
    """8 % everywhere."""
    assert "all cells" in verdict(gate(runs=2), dict.fromkeys(GRID, 0.92)).message


def test_a_cell_with_runs_of_its_own_counts_as_much_as_others() -> None:
    """Three sessions that no other cell has, and a new cell with one run: both are in the mean."""
    cells = {cell.id: stored(cell) for cell in GRID}
    first, second, *_ = GRID.decode_cells()
    cells[first.id] = stored(first, runs=3).model_copy(update={"runs": ["a", "b", "c"]})
    cells[second.id] = stored(second, runs=1)
    found = verdict(gate(cells), dict.fromkeys(GRID, 0.95))
    whole = next(s for s in found.worse if (s.metric, s.group) == ("steps_s", "all cells"))
    assert len(whole.members) == 12


def test_the_users_tolerance_is_the_matrixs_too() -> None:
    """Of a metric: its mean has to keep it. Of one cell: it leaves the mean."""
    slow = dict.fromkeys(GRID, 0.95)
    told = dict.fromkeys(("steps_s", "total_tok_s", "itl_ms", "ttft_ms", "prefill_tok_s"), 0.10)
    assert verdict(gate(tolerances=told), slow).worse == ()
    assert verdict(gate(of_profile=told), slow).worse == ()
    strict = verdict(gate(tolerances={"steps_s": 0.01}), dict.fromkeys(GRID, 0.985))
    assert {s.metric for s in strict.worse} == {"steps_s"}
    one = verdict(gate(tolerances={"steps_s@decode[16K-c16]": 0.5}), slow)
    assert next(s for s in one.shifts if s.metric == "steps_s").members.count(CELL.id) == 0


def test_a_shift_of_one_start_is_not_one_of_the_build() -> None:
    """Measured again at another start: as slow there, or as ever."""
    known = gate()
    found = verdict(known, dict.fromkeys(GRID, 0.94))
    sample = choose_sample(found)
    assert [sum(c.phase == p for c in sample) for p in ("decode", "prefill")] == [8, 3]

    def again(speed: float) -> MatrixVerdict:
        records = [judge(cell, [measured(cell, speed, start=2)], known) for cell in sample]
        return confirm(found, records, known)

    assert again(1.0).worse == ()
    assert {s.metric for s in again(0.95).worse} == {s.metric for s in found.worse}


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


def test_the_limit_is_that_of_a_runs_mean() -> None:
    """By hand from the variance of a mean: one further run against the median of five."""
    prior = np.full(6, 0.015)
    logs = 0.01 * np.random.default_rng(1).standard_normal((6, 5))
    spread = fit(np.diff(logs, axis=-1), [4] * 6, [1] * 6, prior)
    variance, df = spread.of_mean(1 / spread.cell)
    mean, limit = shift_of(spread, np.full(6, 0.05), np.ones(6, bool), 5, 1e-3)
    assert float(mean) == pytest.approx(0.05)
    by_hand = t_quantile(1e-3, df) * np.sqrt(variance * 1.2868)
    assert float(limit) == pytest.approx(float(by_hand))


def test_the_matrix_has_a_floor_too() -> None:
    """Half of a cell's: even runs that hardly vary do not make 1 % a slowdown."""
    shift = next(s for s in verdict(gate(noise=0.0001), {}).shifts if s.metric == "ttft_ms")
    assert shift.tolerance >= METRICS["ttft_ms"].floor / 2
