"""What is watched warns and never fails; floors that a profile sets."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import Outcome
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Gate, fails, judge, judge_matrix, needs_confirmation
from pytest_llmperf.verdict.noise import floor_of
from tests.verdict.build import CELL, GRID, gate, measured, stored, verdict_of


def watching(*keys: str, floors: dict[str, float] | None = None) -> Gate:
    cells = {cell.id: stored(cell) for cell in GRID}
    return Gate.build("box", cells, GRID, Settings(), watched=keys, floors=floors)


def test_a_watched_metric_that_is_worse_is_a_pass_with_a_warning() -> None:
    """Nor is it measured again; the other metrics fail as before."""
    slow = [measured(ttft_ms=600.0)]
    assert judge(CELL, slow, gate()).outcome is Outcome.REGRESSED
    by = watching("ttft_ms")
    found = judge(CELL, slow, by)
    assert verdict_of(found, "ttft_ms").verdict == "watched"
    assert found.outcome is Outcome.PASS
    assert not fails(found, by)
    assert not needs_confirmation(found)
    assert judge(CELL, [measured(speed=0.8)], by).outcome is Outcome.REGRESSED


def test_a_watched_cell_fails_by_no_metric() -> None:
    """Other cells do, and it passes as judged: it is no cell that nobody could judge."""
    by = watching("*@decode[16K-c16]")
    found = judge(CELL, [measured(speed=0.5)], by)
    assert found.outcome is Outcome.PASS
    assert {c.verdict for c in found.comparisons if c.gated} == {"watched"}
    assert judge(CELL, [measured()], by).outcome is Outcome.PASS
    other = Cell("decode", 16384, 4)
    assert judge(other, [measured(other, 0.5)], by).outcome is Outcome.REGRESSED


def test_a_watched_metric_that_is_missing_is_a_warning() -> None:
    gone = [measured(steps_s=None)]
    assert judge(CELL, gone, gate()).outcome is Outcome.INVALID
    found = judge(CELL, gone, watching("steps_s"))
    assert found.outcome is Outcome.PASS
    assert verdict_of(found, "steps_s").verdict == "watched"


def test_watching_judges_a_metric_that_is_else_observed() -> None:
    """By its name; a pattern for all metrics takes what is judged anyway."""
    fewer = [measured(tokens_per_step=1.0)]
    assert verdict_of(judge(CELL, fewer, watching("tokens_per_step")), "tokens_per_step").gated
    found = verdict_of(judge(CELL, fewer, watching("*@decode*")), "tokens_per_step")
    assert (found.gated, found.verdict) == (False, "observed")


def test_the_matrix_does_not_fail_by_what_is_watched() -> None:
    """All cells 8 % slow: with one metric watched the others still tell, with all none does."""

    def matrix(by: Gate) -> set[str]:
        records = [judge(cell, [measured(cell, 0.92)], by) for cell in GRID]
        return {shift.metric for shift in judge_matrix(records, by).worse}

    assert "itl_ms" in matrix(watching())
    assert "itl_ms" not in matrix(watching("itl_ms"))
    assert "total_tok_s" in matrix(watching("itl_ms"))
    assert matrix(watching("*")) == set()


def test_what_cannot_fail_takes_no_share_of_the_chance_of_error() -> None:
    assert watching("ttft_ms").comparisons == watching().comparisons - 12


def test_a_floor_of_the_profile_takes_the_place_of_the_tables() -> None:
    """In the metric's unit: 300 ms of TTFT + 25 % is nothing where 100 ms do not count."""
    slow = [measured(ttft_ms=375.0)]
    assert judge(CELL, slow, watching()).outcome is Outcome.REGRESSED
    assert judge(CELL, slow, watching(floors={"ttft_ms": 100.0})).outcome is Outcome.PASS
    ttft = METRICS["ttft_ms"]
    assert float(floor_of(ttft, 50.0, 15.0)) == pytest.approx(0.3)
    assert float(floor_of(ttft, 50.0, 0.0)) == pytest.approx(ttft.floor)


@pytest.mark.parametrize(
    ("metric", "value", "more"), [("ttft_ms", 12.0, 1.0), ("itl_ms", 0.4, 0.04)]
)
def test_a_small_part_of_a_tiny_value_is_no_change(metric: str, value: float, more: float) -> None:
    """12 ms of TTFT and 1 ms, 0.4 ms between tokens and 0.04."""
    assert more / value < float(floor_of(METRICS[metric], value))
