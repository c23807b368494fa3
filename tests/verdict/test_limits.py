"""Absolute limits: judged beside the baseline, and without any."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, Measurement, Outcome
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Limits, check_limits, judge, needs_confirmation
from pytest_llmperf.verdict.gate import Gate
from tests.baseline.samples import SMALL
from tests.verdict.build import CELL, gate, measured, speeds


def judged(
    bounds: dict[str, float],
    *attempts: Measurement,
    watched: tuple[str, ...] = (),
    by: Gate | None = None,
) -> CellRecord:
    return check_limits(judge(CELL, attempts or [measured()], by), Limits(bounds, watched))


def test_a_limit_needs_no_baseline() -> None:
    """A latency above its limit, and a speed below."""
    slow = judged({"ttft_ms": 250, "total_tok_s": 2000, "itl_ms": 11})
    assert slow.outcome is Outcome.LIMIT
    assert slow.outcome.failed
    assert {c.metric: c.verdict for c in slow.limits} == {
        "total_tok_s": "broken", "itl_ms": "kept", "ttft_ms": "broken",
    }  # fmt: skip
    assert judged({"ttft_ms": 350, "total_tok_s": 1500}).outcome is Outcome.MEASURED


def test_the_message_says_what_how_much_and_which_limit() -> None:
    """Short: a title for pytest's one line, and a line a limit, the kept ones not."""
    key = "ttft_ms@decode[16K-*]"
    assert judged({key: 250, "itl_ms": 11}).message.splitlines() == [
        "TTFT beyond its limit: decode[16K-c16]",
        "TTFT 300 ms, limit 250 ms: 20.0 % beyond, by ttft_ms@decode[16K-*]",
    ]


@pytest.mark.parametrize(("limit", "outcome"), [(1607, "MEASURED"), (1615, "LIMIT")])
def test_a_value_within_its_own_error_of_the_limit_keeps_it(limit: float, outcome: str) -> None:
    """1600 tok/s with a standard error of 4.8: 7.9 is the one-sided 95 % error."""
    found = judged({"total_tok_s": limit})
    assert found.outcome.value == outcome
    assert found.limits[0].margin == pytest.approx(1.645 * 4.8, abs=0.01)


def test_a_broken_limit_is_confirmed_as_a_breach_is() -> None:
    """By two more attempts, whose median is judged: one slow window breaks nothing."""
    bounds = {"total_tok_s": 1500.0}
    first = judged(bounds, *speeds(0.8))
    assert needs_confirmation(first)
    assert needs_confirmation(judged(bounds, *speeds(0.8, 1.0)))
    again = judged(bounds, *speeds(0.8, 1.0, 1.0))
    assert again.outcome is Outcome.MEASURED
    assert again.limits[0].measured == pytest.approx(1600)
    last = judged(bounds, *speeds(0.8, 0.81, 0.82))
    assert last.outcome is Outcome.LIMIT
    assert "attempts 1,280.0, 1,296.0, 1,312.0" in last.message
    assert not needs_confirmation(last)


def test_a_metric_that_was_not_observed_cannot_keep_its_limit() -> None:
    """Missing is never a pass."""
    found = judged({"steps_s": 10}, measured(steps_s=None))
    assert found.outcome is Outcome.LIMIT
    assert "steps/s was not measured, limit 10.00" in found.message


def test_beside_a_baseline_both_are_told() -> None:
    """A pass that breaks a limit is LIMIT; a regression keeps its word, and says so too."""
    assert judged({"ttft_ms": 250}, by=gate()).outcome is Outcome.LIMIT
    both = judged({"total_tok_s": 1500}, *speeds(0.8, 0.8, 0.8), by=gate())
    assert both.outcome is Outcome.REGRESSED
    assert "worse than its baseline" in both.message
    assert "limit 1,500.0: 14.7 % beyond" in both.message
    assert [check.verdict for check in both.limits] == ["broken"]


def test_an_invalid_measurement_has_no_limits() -> None:
    bad = measured(status="invalid", reason="the stream broke")
    found = judged({"ttft_ms": 250}, bad)
    assert (found.outcome, found.limits) == (Outcome.INVALID, [])


def test_a_watched_limit_only_warns() -> None:
    found = judged({"ttft_ms": 250}, watched=("ttft_ms@decode[16K-*]",))
    assert found.outcome is Outcome.MEASURED
    assert [check.verdict for check in found.limits] == ["watched"]
    assert not needs_confirmation(found)


def baseline(**fields: Any) -> Baseline:
    from pytest_llmperf.baseline.file import loads

    return loads(SMALL, "x").model_copy(update=fields)


def test_the_command_line_goes_before_the_profile() -> None:
    """Key by key; and a gate of the command line before a watch of the profile."""
    profile = baseline(
        limits={"ttft_ms": 500, "itl_ms": 20}, gate={"ttft_ms": "watch", "itl_ms": "watch"}
    )
    found = Limits.build(profile, Settings(limits={"ttft_ms": 300}, gate=("ttft_ms",)))
    assert found == Limits({"ttft_ms": 300, "itl_ms": 20}, ("itl_ms",))
    assert Limits.build(None, Settings()) == Limits()


def test_a_limit_that_no_cell_has_is_named() -> None:
    """Such as one for a context that nobody measures."""
    limits = Limits({"ttft_ms@decode[64K-*]": 9, "prefill_tok_s@decode*": 9, "itl_ms": 9})
    idle = limits.find_idle([CELL, Cell("prefill", 8192)])
    assert [notice.text.split()[5] for notice in idle] == [
        "ttft_ms@decode[64K-*];", "prefill_tok_s@decode*;",
    ]  # fmt: skip
