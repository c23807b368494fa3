"""Faults that gates in the wild had, as far as the verdict decides them."""

from __future__ import annotations

import math

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import Outcome
from pytest_llmperf.verdict import fails, judge, why_empty
from tests.verdict.build import CELL, PREFILL, TRUTH, gate, measured, unchecked, verdict_of

BROKEN = [math.nan, math.inf, -math.inf, 0.0, -5.0]


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("metric", ["total_tok_s", "itl_ms", "ttft_ms", "steps_s"])
@pytest.mark.parametrize("profile", [True, False])
def test_g1_what_is_no_number_never_passes(metric: str, value: float, profile: bool) -> None:
    """NaN compares false and infinity clears every minimum: invalid, never compared or stored."""
    known = gate() if profile else None
    record = judge(CELL, [unchecked(measured(), **{metric: value})], known)
    assert record.outcome is Outcome.INVALID
    assert fails(record, known)


@pytest.mark.parametrize("value", BROKEN)
def test_g1_one_broken_attempt_of_three_is_not_outvoted(value: float) -> None:
    """The other two would have passed."""
    attempts = [measured(speed=0.8), measured(), unchecked(measured(), total_tok_s=value)]
    assert judge(CELL, attempts, gate()).outcome is Outcome.INVALID


@pytest.mark.parametrize("error", [math.nan, math.inf, -1.0])
def test_g1_a_broken_standard_error_gives_no_tolerance(error: float) -> None:
    """It would make the tolerance NaN, which nothing exceeds: observed instead."""
    errors = {"total_tok_s": error, "itl_ms": 0.03, "steps_s": 2.0}
    record = judge(CELL, [unchecked(measured(), std_errors=errors)], gate())
    assert verdict_of(record, "total_tok_s").verdict == "observed"
    assert verdict_of(record, "itl_ms").verdict == "ok"


@pytest.mark.parametrize("cell", [CELL, PREFILL])
def test_g2_missing_is_missing_and_no_zero(cell: Cell) -> None:
    """A headline value that is not there is a reason of its own, not a fall of 100 %."""
    name = "prefill_tok_s" if cell is PREFILL else "total_tok_s"
    record = judge(cell, [measured(cell, **{name: None})], gate())
    assert record.outcome is Outcome.INVALID
    assert "is missing" in record.message
    assert "-100" not in record.message


def test_g3_a_broken_run_without_a_baseline_is_not_new() -> None:
    """So that it cannot become one."""
    record = judge(CELL, [measured(total_tok_s=None)], gate({}))
    assert record.outcome is Outcome.INVALID


@pytest.mark.parametrize("metric", list(TRUTH["decode"]))
def test_g5_direction_is_the_metrics_own(metric: str) -> None:
    """Twice the throughput is better, twice the latency is worse; and the other way round."""
    known = gate(gate=tuple(METRICS))
    truth = TRUTH["decode"][metric]
    higher = METRICS[metric].better == "higher"
    for factor in (2.0, 0.5):
        record = judge(CELL, [measured(**{metric: truth * factor})], known)
        better = (factor > 1) == higher
        assert verdict_of(record, metric).verdict == ("better" if better else "worse")


def test_g6_an_improvement_passes_and_too_good_is_told() -> None:
    """54 ms to 2 ms is more likely a fault than a feat."""
    errors = {"total_tok_s": 4.0, "itl_ms": 0.001, "steps_s": 2.0}
    record = judge(CELL, [measured(itl_ms=10 / 27, std_errors=errors)], gate())
    assert record.outcome is Outcome.IMPROVED
    assert not fails(record, gate())
    assert any("ITL 27.0" in note for note in record.notes)


@pytest.mark.parametrize(("tok_s", "outcome"), [(1450, "PASS"), (1430, "REGRESSED")])
def test_g7_a_tolerance_is_a_fraction_of_the_baseline(tok_s: float, outcome: str) -> None:
    """0.1 is ten per cent below 1,600: 1,440."""
    known = gate(tolerances={"total_tok_s": 0.1})
    assert judge(CELL, [measured(total_tok_s=tok_s)], known).outcome.value == outcome


def test_g8_a_run_whose_cells_match_nothing_is_not_green() -> None:
    """Zero overlap of names: every cell is new, none was judged."""
    records = [judge(CELL, [measured()], gate({}))]
    assert why_empty(records) == "nothing to compare with: every cell is new"
    assert why_empty([]) == "nothing was measured"


def test_g11_one_run_in_the_baseline_is_no_measured_noise() -> None:
    """8 % off a single run passes on the prior, which says that it is weak; 25 % does not."""
    known = gate(runs=1)
    near = judge(CELL, [measured(total_tok_s=1472.0)], known)
    assert near.outcome is Outcome.PASS
    assert verdict_of(near, "total_tok_s").weak
    assert judge(CELL, [measured(total_tok_s=1200.0)], known).outcome is Outcome.REGRESSED


def test_g12_every_metric_has_its_unit_in_its_name() -> None:
    """Milliseconds cannot be read as seconds."""
    endings = {"tok/s": "_tok_s", "ms": "_ms", "1/s": "_s"}
    for metric in METRICS.values():
        assert metric.name.endswith(endings.get(metric.unit, "tokens_per_step"))


def test_g13_each_metric_has_a_threshold_of_its_own() -> None:
    """TTFT may move more than tok/s."""
    record = judge(CELL, [measured()], gate())
    tolerances = {c.metric: c.tolerance for c in record.comparisons}
    assert tolerances["ttft_ms"] > 2 * tolerances["total_tok_s"]
