"""Every row of the table of verdicts, and what confirms or explains one."""

from __future__ import annotations

import pytest

from pytest_llmperf.baseline.schema import CellBaseline, OverCapacity, Run
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import Capacity, Measurement, Notice, Outcome
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.verdict import Gate, fails, judge, needs_confirmation
from tests.verdict.build import (
    CELL,
    GRID,
    PREFILL,
    TRUTH,
    gate,
    measured,
    speeds,
    stored,
    unchecked,
    verdict_of,
)


def over_capacity(cell: Cell = CELL) -> Measurement:
    return Measurement(
        phase=cell.phase,
        context=cell.context,
        concurrency=cell.concurrency,
        status="over_capacity",
        capacity=Capacity(needs=2000, budget=1000, reason="needs 2,000, the server has 1,000"),
        started="2026-01-01T00:00:00Z",
        method=1,
    )


def invalid() -> Measurement:
    return measured(status="invalid", reason="2 of 16 requests failed: boom")


def gate_that_did_not_fit(**more: bool) -> object:
    cells = {cell.id: stored(cell) for cell in GRID}
    cells[CELL.id] = CellBaseline(
        runs=["2026-01"], over_capacity=OverCapacity(needs=2000, budget=1500)
    )
    return gate(cells, **more)


@pytest.mark.parametrize("cell", [CELL, PREFILL])
def test_within_tolerance_passes(cell: Cell) -> None:
    """A little off either way."""
    for speed in (0.98, 1.0, 1.02):
        record = judge(cell, [measured(cell, speed)], gate())
        assert record.outcome is Outcome.PASS
        assert not fails(record, gate())
        assert record.message == ""


@pytest.mark.parametrize("cell", [CELL, PREFILL])
def test_worse_is_confirmed_before_it_fails(cell: Cell) -> None:
    """The first breach asks for two more attempts; the median of three is the verdict."""
    first = judge(cell, [measured(cell, 0.85)], gate())
    assert needs_confirmation(first)
    last = judge(cell, [measured(cell, v) for v in (0.85, 0.84, 0.86)], gate())
    assert last.outcome is Outcome.REGRESSED
    assert fails(last, gate())
    assert not needs_confirmation(last)
    assert last.measurement == last.attempts[0]
    assert len(last.attempts) == 3


def test_a_breach_that_does_not_repeat_passes_with_all_attempts() -> None:
    """One slow attempt of three is not the median."""
    record = judge(CELL, speeds(0.8, 1.0, 0.99), gate())
    assert record.outcome is Outcome.PASS
    assert [m.total_tok_s for m in record.attempts] == [1280, 1600, 1584]
    assert verdict_of(record, "total_tok_s").measured == 1584


@pytest.mark.parametrize(
    ("metric", "value"),
    [("total_tok_s", 1300.0), ("itl_ms", 12.5), ("ttft_ms", 500.0), ("steps_s", 700.0)],
)
def test_one_gated_metric_is_enough_to_fail(metric: str, value: float) -> None:
    """Whichever of them got worse, and only that one is called worse."""
    record = judge(CELL, [measured(**{metric: value})], gate())
    assert record.outcome is Outcome.REGRESSED
    assert [c.metric for c in record.comparisons if c.verdict == "worse"] == [metric]


def test_what_is_not_gated_cannot_fail_unless_asked_for() -> None:
    """Tokens per step fell with every gated metric as it was."""
    attempt = measured(tokens_per_step=1.5)
    assert judge(CELL, [attempt], gate()).outcome is Outcome.PASS
    assert judge(CELL, [attempt], gate(gate=("tokens_per_step",))).outcome is Outcome.REGRESSED


def test_better_beyond_tolerance_is_an_improvement_and_passes() -> None:
    """Listed; it fails on request only."""
    record = judge(CELL, [measured(speed=1.2)], gate())
    assert record.outcome is Outcome.IMPROVED
    assert not fails(record, gate())
    assert fails(record, gate(fail_on_improvement=True))
    assert not needs_confirmation(record)


def test_better_and_worse_at_once_is_a_regression() -> None:
    """More tok/s do not buy a slower first token."""
    record = judge(CELL, [measured(total_tok_s=2000.0, ttft_ms=600.0)], gate())
    assert record.outcome is Outcome.REGRESSED


def test_twice_as_fast_is_suspicious() -> None:
    """Named once, with the usual causes."""
    fast = judge(CELL, [measured(speed=2.1)], gate())
    assert fast.outcome is Outcome.IMPROVED
    (note,) = [n for n in fast.notes if n.startswith("suspicious")]
    assert "cache" in note
    assert "errors" in note
    plain = judge(CELL, [measured(speed=1.5)], gate())
    assert not any(n.startswith("suspicious") for n in plain.notes)


def test_a_cell_that_the_baseline_lacks_is_new() -> None:
    """It passes, and fails under CI unless it is allowed or being stored."""
    cells = {cell.id: stored(cell) for cell in GRID if cell != CELL}
    record = judge(CELL, [measured()], gate(cells))
    assert record.outcome is Outcome.NEW
    assert not fails(record, gate(cells))
    assert fails(record, gate(cells, ci=True))
    assert not fails(record, gate(cells, ci=True, allow_new=True))
    assert not fails(record, gate(cells, ci=True, update=True))
    assert "--llm-allow-new" in record.message


def test_without_a_profile_nothing_is_compared() -> None:
    """Measured and reported, said so."""
    record = judge(CELL, [measured()], None)
    assert (record.outcome, record.comparisons) == (Outcome.MEASURED, [])
    assert not fails(record, None)


def test_over_capacity_as_in_the_baseline_is_skipped_with_both_numbers() -> None:
    """And so is a cell without a baseline, or a run without a profile."""
    record = judge(CELL, [over_capacity()], gate_that_did_not_fit())
    assert record.outcome is Outcome.OVERCAP
    assert "2,000" in record.message
    assert "1,000" in record.message
    assert judge(CELL, [over_capacity()], gate({})).outcome is Outcome.OVERCAP
    assert judge(CELL, [over_capacity()], None).outcome is Outcome.OVERCAP


def test_over_capacity_where_the_baseline_has_numbers_fails() -> None:
    """A capacity regression, with both sides in the message."""
    record = judge(CELL, [over_capacity()], gate())
    assert record.outcome is Outcome.CAPACITY_REGRESSION
    assert fails(record, gate())
    assert "needs 2,000" in record.message
    assert "5 runs" in record.message


def test_what_did_not_fit_and_fits_now_is_new_even_under_ci() -> None:
    """Capacity up."""
    known = gate_that_did_not_fit(ci=True)
    record = judge(CELL, [measured()], known)
    assert record.outcome is Outcome.NEW
    assert not fails(record, known)
    assert "fits now" in record.message
    assert "1,500" in record.message


@pytest.mark.parametrize("attempts", [[invalid()], [measured(speed=0.8), measured(), invalid()]])
def test_an_invalid_attempt_fails_with_its_reason_and_is_not_compared(
    attempts: list[Measurement],
) -> None:
    """With a profile or without one."""
    for known in (gate(), None):
        record = judge(CELL, attempts, known)
        assert record.outcome is Outcome.INVALID
        assert fails(record, known)
        assert "2 of 16 requests failed: boom" in record.message
        assert record.comparisons == []
        assert record.measurement == attempts[-1]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_two_slow_attempts_are_worse_whatever_the_third_is(order: tuple[int, ...]) -> None:
    """Each beyond the tolerance by itself: the invalid one is left out, and told."""
    given = [measured(speed=0.8), measured(speed=0.82), invalid()]
    record = judge(CELL, [given[n] for n in order], gate())
    assert record.outcome is Outcome.REGRESSED
    assert "left out: attempt" in record.message
    assert "2 of 16 requests failed: boom" in record.notes[-1]
    assert len(record.attempts) == 3
    assert verdict_of(record, "total_tok_s").measured == pytest.approx(0.81 * 1600)


def test_two_attempts_that_differ_in_what_is_worse_confirm_nothing() -> None:
    """Their median is within the tolerance; that is no pass while the third is invalid."""
    attempts = [measured(total_tok_s=0.85 * 1600), measured(itl_ms=10 / 0.85)]
    assert [judge(CELL, [one], gate()).outcome for one in attempts] == [Outcome.REGRESSED] * 2
    assert judge(CELL, attempts, gate()).outcome is Outcome.PASS
    assert judge(CELL, [*attempts, invalid()], gate()).outcome is Outcome.INVALID


def test_one_slow_attempt_and_two_invalid_ones_confirm_nothing() -> None:
    attempts = [measured(speed=0.8), invalid(), invalid()]
    assert judge(CELL, attempts, gate()).outcome is Outcome.INVALID


def test_a_first_token_in_time_does_not_vouch_for_the_speed() -> None:
    """Half as fast, in a window too short to know its error: not judged, so not passed."""
    attempt = measured(speed=0.5, ttft_ms=TRUTH["decode"]["ttft_ms"], std_errors={})
    record = judge(CELL, [attempt], gate())
    assert record.outcome is Outcome.UNGATED
    assert any(c.gated and c.metric == "ttft_ms" for c in record.comparisons)


@pytest.mark.parametrize(("speed", "outcome"), [(0.2, "REGRESSED"), (0.9, "UNGATED")])
def test_a_fall_beyond_even_a_large_noise_is_one(speed: float, outcome: str) -> None:
    """A noise of a half is too large to gate on, and too small to explain one of 80 %."""
    errors = {name: 0.12 * speed * TRUTH["decode"][name] for name in ("total_tok_s", "steps_s")}
    errors["itl_ms"] = 0.12 / speed * TRUTH["decode"]["itl_ms"]
    attempts = [measured(speed=speed, std_errors=errors)] * 3
    record = judge(CELL, attempts, gate())
    assert record.outcome.value == outcome
    (total,) = [c for c in record.comparisons if c.metric == "total_tok_s"]
    assert not total.gated
    # what fails does not say why it could not be judged
    assert bool(total.why) == (outcome == "UNGATED")
    assert total.tolerance is not None
    assert METRICS["total_tok_s"].observed_beyond < total.tolerance < 0.8


def test_a_cell_without_a_judged_metric_is_ungated() -> None:
    """Every reason is in the table."""
    record = judge(CELL, [measured(std_errors={})], gate())
    assert record.outcome is Outcome.UNGATED
    assert record.message.count("too short") == 3


def test_a_speed_judged_by_its_steps_alone_is_judged() -> None:
    """tok/s of a few draft tokens may be too noisy; the engine's steps are not."""
    errors = {**measured().std_errors, "total_tok_s": 400.0, "itl_ms": 2.5}
    record = judge(CELL, [measured(std_errors=errors)], gate())
    assert not verdict_of(record, "total_tok_s").gated
    assert verdict_of(record, "steps_s").gated
    assert record.outcome is Outcome.PASS


def test_a_gated_metric_that_vanished_is_never_a_pass() -> None:
    """The baseline has ITL, the measurement has none and does not say why."""
    for speed in (1.0, 1.3):
        record = judge(CELL, [measured(speed=speed, itl_ms=None)], gate())
        assert record.outcome is Outcome.INVALID
        assert record.message.startswith(f"{CELL.id} lacks a metric"), "whatever else got better"
        assert "MISSING" in record.message


BUFFER = Notice(code="buffered", text="a proxy buffers")
LATE = Notice(code="metrics-late", text="the server's metrics answered late")


def test_a_buffer_that_the_baseline_had_not_is_a_finding() -> None:
    """By its name, whether a value stands there or not; tok/s is judged as ever."""
    for itl in (None, 0.001):
        found = judge(CELL, [measured(itl_ms=itl, ttft_ms=None, warnings=[BUFFER])] * 3, gate())
        assert found.outcome is Outcome.REGRESSED
        assert verdict_of(found, "itl_ms").why == "buffered, which its baseline was not"
        assert verdict_of(found, "itl_ms").measured is None
        assert verdict_of(found, "total_tok_s").verdict == "ok"


def test_a_baseline_without_the_metric_asks_for_no_state() -> None:
    """A gateway that has always buffered has no ITL in its baseline."""
    cells = {cell.id: stored(cell) for cell in GRID}
    bare = {"itl_ms": None, "ttft_ms": None}
    cells[CELL.id] = cells[CELL.id].model_copy(update=bare)
    record = judge(CELL, [measured(itl_ms=0.001, warnings=[BUFFER])], gate(cells))
    assert record.outcome is Outcome.PASS


@pytest.mark.parametrize(
    "odd",
    [
        {"warnings": [LATE], "steps_s": None, "tokens_per_step": None},
        {"warnings": [BUFFER], "itl_ms": None},
        {"ttft_warm": False, "ttft_ms": 3000.0},
    ],
)
def test_no_excuse_of_one_attempt_lifts_a_breach(odd: dict[str, object]) -> None:
    """The others were worse; one in another state gives way to them."""
    attempts = [measured(speed=0.8), measured(speed=0.8, **odd), measured(speed=0.81)]
    record = judge(CELL, attempts, gate())
    assert record.outcome is Outcome.REGRESSED
    assert verdict_of(record, "total_tok_s").verdict == "worse"


def test_one_attempt_in_another_state_gives_way_to_sound_ones() -> None:
    """Its value does not count, and no state is called lost."""
    attempts = [
        measured(ttft_ms=3000.0, ttft_warm=False),
        measured(ttft_ms=301.0, ttft_warm=True),
        measured(ttft_ms=299.0, ttft_warm=True),
    ]
    assert needs_confirmation(judge(CELL, attempts[:1], gate()))
    record = judge(CELL, attempts, gate())
    assert record.outcome is Outcome.PASS
    assert verdict_of(record, "ttft_ms").measured == pytest.approx(300.0)


def test_counters_that_came_late_ask_for_another_attempt() -> None:
    """Steps that the baseline counted are missing, never excused."""
    late = measured(steps_s=None, tokens_per_step=None, warnings=[LATE])
    first = judge(CELL, [late], gate())
    assert first.outcome is Outcome.INVALID
    assert needs_confirmation(first)
    assert verdict_of(first, "steps_s").why == "the server's metrics answered late"
    assert judge(CELL, [measured(steps_s=None)], gate()).outcome is Outcome.INVALID


@pytest.mark.parametrize("times", [10, 25])
def test_a_broken_prefix_cache_is_named(times: int) -> None:
    """TTFT of a cold prompt against a warm baseline."""
    record = judge(CELL, [measured(ttft_ms=300.0 * times, ttft_warm=False)] * 3, gate())
    assert record.outcome is Outcome.REGRESSED
    assert verdict_of(record, "ttft_ms").why == "not warm"


@pytest.mark.parametrize("warm", [None, True])
def test_ttft_is_judged_where_nothing_says_that_it_was_cold(warm: bool | None) -> None:
    """A server that does not say is judged."""
    record = judge(CELL, [measured(ttft_ms=900.0, ttft_warm=warm)], gate())
    assert record.outcome is Outcome.REGRESSED


def test_a_cell_is_held_against_the_others_of_its_run() -> None:
    """A run that is 3 % slow as a whole does not make one cell of it fail, and one that is 6 % slow
    in a run that is not stands out."""
    known = gate()
    others = [judge(c, [measured(c)], known) for c in GRID if c.phase == "decode" and c != CELL]
    alone = judge(CELL, [measured(speed=0.945)], known)
    among = judge(CELL, [measured(speed=0.945)], known, others)
    assert alone.outcome is Outcome.PASS
    assert among.outcome is Outcome.REGRESSED
    slow = [judge(c, [measured(c, 0.97)], known) for c in GRID if c.phase == "decode" and c != CELL]
    assert judge(CELL, [measured(speed=0.965)], known, slow).outcome is Outcome.PASS


def test_another_start_of_the_server_is_no_company() -> None:
    """What cells did at one start says nothing of the next."""
    known = gate()
    others = [judge(c, [measured(c)], known) for c in GRID if c.phase == "decode" and c != CELL]
    later = judge(CELL, [measured(speed=0.945, start=2)], known, others)
    assert later.outcome is Outcome.PASS


def test_a_faster_run_does_not_make_an_unchanged_cell_worse() -> None:
    """All others gained 10 %; this one lost nothing."""
    known = gate()
    fast = [judge(c, [measured(c, 1.1)], known) for c in GRID if c.phase == "decode" and c != CELL]
    assert judge(CELL, [measured(speed=0.99)], known, fast).outcome is Outcome.PASS


def test_an_attempt_as_before_shows_that_the_server_still_can() -> None:
    """The median of three is beyond the tolerance, but one is within half of it."""
    assert judge(CELL, speeds(0.8, 0.81, 0.99), gate()).outcome is Outcome.PASS
    assert judge(CELL, speeds(0.8, 0.81, 0.82), gate()).outcome is Outcome.REGRESSED


def test_a_retry_that_the_server_refuses_is_no_capacity_lost() -> None:
    """It held the cell a moment ago: two worse attempts are a regression, one is no verdict."""
    both = judge(CELL, [*speeds(0.8, 0.81), over_capacity()], gate())
    assert both.outcome is Outcome.REGRESSED
    assert "left out: attempt 3 of 3" in both.message
    one = judge(CELL, [measured(speed=0.8), over_capacity()], gate())
    assert one.outcome is Outcome.INVALID


def test_ttft_is_not_judged_when_a_load_host_has_an_unsure_clock() -> None:
    """The rest of the cell is."""
    notice = Notice(code="clock-unsure", text="the clock of gpu2 is known to within 9 ms only")
    unsure = measured(ttft_ms=600.0, warnings=[notice])
    record = judge(CELL, [unsure], gate())
    assert record.outcome is Outcome.PASS
    assert verdict_of(record, "ttft_ms").why == "the clock of a load host is not sure"
    assert judge(CELL, [measured(ttft_ms=600.0)], gate()).outcome is Outcome.REGRESSED


def test_a_slower_engine_is_named() -> None:
    """Steps/s fell, tokens per step did not."""
    record = judge(CELL, speeds(0.85, 0.85, 0.85), gate())
    assert "the engine got slower" in record.message
    assert "steps/s -15" in record.message


def test_a_drop_in_acceptance_is_not_blamed_on_the_engine() -> None:
    """Fewer tokens per step at the same steps/s."""
    record = judge(CELL, [measured(acceptance=0.8)], gate())
    assert record.outcome is Outcome.REGRESSED
    assert "fewer draft tokens are accepted" in record.message
    assert verdict_of(record, "steps_s").verdict == "ok"


def test_both_parts_are_named_when_both_moved() -> None:
    """Neither is most of it."""
    record = judge(CELL, [measured(speed=0.9, acceptance=0.9)], gate())
    assert "both the engine's speed and the acceptance" in record.message


def test_attempts_that_go_one_way_are_called_drift() -> None:
    """Falling from attempt to attempt; not when they merely scatter, as their windows may."""
    falling = judge(CELL, speeds(0.86, 0.8, 0.76), gate())
    assert any(note.startswith("drift: total tok/s") for note in falling.notes)
    scattered = judge(CELL, speeds(0.8, 0.86, 0.76), gate())
    assert not any(note.startswith("drift") for note in scattered.notes)
    first, middle, last = speeds(0.7, 0.66, 0.62)
    unsure = {name: 20 * error for name, error in first.std_errors.items()}
    first, last = (unchecked(m, std_errors=unsure) for m in (first, last))
    chance = judge(CELL, [first, middle, last], gate())
    assert chance.outcome is Outcome.REGRESSED
    assert not any(note.startswith("drift") for note in chance.notes)
    steady = judge(CELL, speeds(0.85, 0.849, 0.848), gate())
    assert not any(note.startswith("drift") for note in steady.notes)


def test_the_failure_is_one_table_for_people() -> None:
    """Cell and profile, then a row a metric with baseline, measured, delta, tolerance, attempts."""
    lines = judge(CELL, speeds(0.85, 0.86, 0.84), gate()).message.splitlines()
    first = "decode[16K-c16] is worse than its baseline (box, 5 runs)"
    assert lines[0].startswith("total tok/s -15.0 %")
    assert lines[0].endswith(f": {first}")
    assert lines[2].split() == [
        "metric", "baseline", "measured", "delta", "tolerance", "attempts", "verdict",
    ]  # fmt: skip
    (row,) = [line for line in lines[1:] if line.startswith("total tok/s")]
    assert "1,600.0" in row
    assert "1,360.0" in row
    assert "-15.0 %" in row
    assert "1,360.0, 1,376.0, 1,344.0" in row
    assert row.endswith("WORSE")


def test_of_a_cell_without_a_verdict_only_the_speed_is_said_not_to_be_judged() -> None:
    """Its TTFT may well have been."""
    record = judge(CELL, [measured(std_errors={})], gate())
    assert record.outcome is Outcome.UNGATED
    assert record.message.startswith(
        f"{CELL.id} has a speed that could not be judged against its baseline (box, 5 runs)"
    )


def test_a_weak_tolerance_is_labelled() -> None:
    """One run in the baseline."""
    record = judge(CELL, [measured(speed=0.7)], gate(runs=1))
    assert verdict_of(record, "total_tok_s").weak
    assert " % weak" in record.message
    assert "(box, 1 run)" in record.message


@pytest.mark.parametrize(
    ("here", "there", "codes"),
    [
        ("usage", ["usage"], []),
        ("chunks", ["usage, chunks"], []),
        ("chunks", ["usage", "usage, estimated"], ["token-source"]),
        ("chunks", [None], []),
        (None, ["usage"], []),
    ],
)
def test_counts_of_another_source_are_not_compared_silently(
    here: str | None, there: list[str | None], codes: list[str]
) -> None:
    """Where both sides say how they counted, and this cell's way is none of the baseline's."""
    names = [f"2026-0{i}" for i, _ in enumerate(there, start=1)]
    cells = {CELL.id: stored(CELL, runs=len(there))}
    runs = {name: Run(token_source=source) for name, source in zip(names, there, strict=True)}
    known = Gate.build("box", cells, GRID, Settings(), runs=runs)
    record = judge(CELL, [measured(token_source=here)], known)
    assert not record.outcome.failed
    assert record.measurement is not None
    assert [notice.code for notice in record.measurement.warnings] == codes


def test_a_slow_drift_is_told_of_sound_attempts_only() -> None:
    """One of three counted no steps: two are no course, and no crash."""
    first = measured(speed=0.7, steps_s=None, tokens_per_step=None, warnings=[LATE])
    record = judge(CELL, [first, *speeds(0.7, 0.72)], gate())
    assert record.outcome is Outcome.REGRESSED
    assert not any(note.startswith("drift: steps") for note in record.notes)


def test_a_clock_of_ours_excuses_nothing_else() -> None:
    """Alone it is no finding; beside attempts that lack TTFT it is no excuse."""
    unsure = Notice(code="clock-unsure", text="x")
    alone = judge(CELL, [measured(ttft_ms=9000.0, warnings=[unsure])], gate())
    assert alone.outcome is Outcome.PASS
    both = [measured(ttft_ms=None), measured(ttft_ms=None), measured(warnings=[unsure])]
    assert judge(CELL, both, gate()).outcome is Outcome.INVALID
