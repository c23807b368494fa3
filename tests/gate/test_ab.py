"""A/B: two servers, pair by pair, without a stored baseline."""

from __future__ import annotations

import json
import math
import sys
from itertools import groupby

import numpy as np
import pytest

from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import CellRecord, Measurement, Outcome, Status
from pytest_llmperf.model.settings import Connection, Settings
from pytest_llmperf.progress.board import Board
from pytest_llmperf.stats.distributions import normal_quantile, sidak, t_quantile
from pytest_llmperf.verdict import fails
from pytest_llmperf.verdict.ab import Pair, PairGate, judge_pairs, needs_confirmation
from tests.gate.project import GRID, SHORT, WIDE, words
from tests.verdict.build import CELL, PREFILL, measured, verdict_of
from tests.verdict.build import GRID as CELLS

OTHER = "http://other:8000"


def gate(**settings: object) -> PairGate:
    return PairGate.of(OTHER, CELLS, Settings(**settings))  # type: ignore[arg-type]


def pairs(*speeds: float, cell: Cell = CELL) -> list[Pair]:
    return [Pair(measured(cell), measured(cell, speed)) for speed in speeds]


def judged(*speeds: float, cell: Cell = CELL, **settings: object) -> CellRecord:
    return judge_pairs(cell, pairs(*speeds, cell=cell), gate(**settings))


@pytest.mark.parametrize("cell", [CELL, PREFILL])
def test_equal_servers_pass(cell: Cell) -> None:
    """And the tolerance is no less than half the floor of each metric."""
    record = judged(1.002, 0.998, cell=cell)
    assert record.outcome is Outcome.PASS
    assert all(c.tolerance >= METRICS[c.metric].floor / 2 for c in record.comparisons)
    assert all(c.n == 2 and not c.weak for c in record.comparisons)


def test_servers_that_count_tokens_otherwise_are_not_compared_silently() -> None:
    """One sends usage with every chunk, the other one none."""
    pair = Pair(measured(token_source="usage"), measured(token_source="chunks"))
    record = judge_pairs(CELL, [pair, pair], gate())
    assert record.measurement is not None
    assert [notice.code for notice in record.measurement.warnings] == ["token-source"]


@pytest.mark.parametrize("cell", [CELL, PREFILL])
def test_a_slower_server_is_worse(cell: Cell) -> None:
    """5 % in both pairs; the pairs are told, and more are measured before it is certain."""
    record = judged(0.95, 0.95, cell=cell)
    assert record.outcome is Outcome.REGRESSED
    assert f"{cell.id} is worse than {OTHER} (2 pairs)" in record.message
    assert any(note.startswith("pairs, ") and note.count("->") == 2 for note in record.notes)
    assert needs_confirmation(record, pairs(0.95, 0.95))
    assert not needs_confirmation(record, pairs(*[0.95] * 5))


def test_what_is_reported_of_four_pairs_is_what_was_judged() -> None:
    """Of an even number no window is the median."""
    record = judged(0.95, 0.94, 0.93, 0.92)
    assert record.measurement is not None
    for comparison in record.comparisons:
        assert record.measurement.value(comparison.metric) == comparison.measured


def test_a_faster_server_is_better_and_passes() -> None:
    """Which of two is the faster is the question: that too is not called on two pairs."""
    record = judged(1.1, 1.1)
    assert record.outcome is Outcome.IMPROVED
    assert needs_confirmation(record, pairs(1.1, 1.1))
    assert not fails(record, gate())
    assert fails(record, gate(fail_on_improvement=True))


def test_drift_falls_out_of_pairs_measured_a_b_b_a() -> None:
    """A machine that slows down by 2 % a window: first the reference leads, then the tested one."""
    windows = [measured(speed=speed) for speed in (1.0, 0.98, 0.96, 0.94)]
    drifting = [Pair(windows[0], windows[1]), Pair(windows[3], windows[2])]
    record = judge_pairs(CELL, drifting, gate())
    assert record.outcome is Outcome.PASS
    assert abs(verdict_of(record, "total_tok_s").delta) < 0.001


def test_pairs_that_contradict_each_other_widen_the_tolerance() -> None:
    """What the windows' own errors do not explain is noise all the same."""
    apart = verdict_of(judged(0.80, 1.05), "total_tok_s")
    together = verdict_of(judged(0.92, 0.93), "total_tok_s")
    assert apart.verdict == "ok"
    assert together.verdict == "worse"
    assert together.tolerance < apart.tolerance


EXPECTED = (0.5 * 0.015) ** 2
"""Variance of a log ratio of a speed, before pairs show it."""


def at(speed: float) -> Measurement:
    return measured(speed=speed, std_errors={"total_tok_s": 0.01 * speed * 1600})


def test_two_pairs_only_ask_for_more() -> None:
    """By hand: windows of 1 % error each, and pairs that agree; the normal quantile."""
    comparison = verdict_of(judge_pairs(CELL, [Pair(at(1.0), at(1.0))] * 2, gate()), "total_tok_s")
    tail = sidak(0.01, gate().comparisons)
    limit = normal_quantile(tail) * math.sqrt(4 * 2 * 0.01**2 / 5 / 2)
    assert comparison.tolerance == pytest.approx(1 - math.exp(-limit))


def test_five_pairs_are_judged_by_students_t() -> None:
    """By hand: their spread with 4 degrees of freedom, and 4 of the windows' errors."""
    ratios = [-0.02, 0.0, 0.02, 0.04, 0.01]
    given = [Pair(at(1.0), at(math.exp(ratio))) for ratio in ratios]
    apart = np.var(ratios, ddof=1)
    record = judge_pairs(CELL, given, gate())
    one = (4 * 2 * 0.01**2 + 4 * apart) / 8
    limit = t_quantile(sidak(0.01, gate().comparisons), 8) * math.sqrt(one / 5)
    assert verdict_of(record, "total_tok_s").tolerance == pytest.approx(1 - math.exp(-limit))


def test_pairs_of_other_cells_tell_of_the_noise_too() -> None:
    """Ten cells whose pairs lie 1 % apart: with 4 pairs' own they are worth 14 degrees."""
    others = [[Pair(at(1.0), at(1.0)), Pair(at(1.0), at(math.exp(0.01 * 2**0.5)))]] * 10
    given = [Pair(at(1.0), at(1.0))] * 5
    record = judge_pairs(CELL, given, gate(), others)
    own = max(2 * 0.01**2, EXPECTED)
    one = (4 * own + 10 * 0.01**2 + 4 * 0.0) / 18
    limit = t_quantile(sidak(0.01, gate().comparisons), 18) * math.sqrt(one / 5)
    assert verdict_of(record, "total_tok_s").tolerance == pytest.approx(1 - math.exp(-limit))


def test_a_window_without_an_error_of_its_own_is_observed() -> None:
    short = [Pair(measured(std_errors={}), measured(speed=0.5, std_errors={})) for _ in range(2)]
    record = judge_pairs(CELL, short, gate())
    assert verdict_of(record, "total_tok_s").verdict == "observed"
    assert record.outcome is not Outcome.PASS or verdict_of(record, "ttft_ms").gated


def unfit() -> Measurement:
    values = {"status": Status.OVER_CAPACITY, "reason": "needs 2, has 1", "std_errors": {}}
    return measured(**values, **dict.fromkeys(METRICS))


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (True, False, Outcome.CAPACITY_REGRESSION),
        (False, False, Outcome.OVERCAP),
        (False, True, Outcome.NEW),
    ],
)
def test_capacity_is_compared_too(a: bool, b: bool, outcome: Outcome) -> None:
    """What only the other server holds is a regression of capacity."""
    both = [Pair(measured() if a else unfit(), measured() if b else unfit()) for _ in range(2)]
    assert judge_pairs(CELL, both, gate()).outcome is outcome


def test_one_reference_over_capacity_lifts_no_breach() -> None:
    """Four pairs of five are worse by 30 %."""
    lost = Pair(unfit(), measured(speed=0.7))
    for place in (0, 4):
        five = pairs(0.7, 0.7, 0.7, 0.7)
        five.insert(place, lost)
        assert judge_pairs(CELL, five, gate()).outcome is Outcome.REGRESSED


def test_one_window_without_an_error_excuses_no_pair() -> None:
    """The others know theirs."""
    odd = Pair(measured(), measured(speed=0.7, std_errors={}))
    record = judge_pairs(CELL, [*pairs(0.7, 0.7, 0.7, 0.7), odd], gate())
    assert verdict_of(record, "total_tok_s").verdict == "worse"


def test_an_invalid_reference_is_no_pass() -> None:
    """Nor is the tested server blamed for it: the message names the other one."""
    broken = measured(status=Status.INVALID, reason="2 of 16 requests failed")
    record = judge_pairs(CELL, [*pairs(1.0), Pair(broken, measured())], gate())
    assert record.outcome is Outcome.INVALID
    assert OTHER in record.message
    assert "pair 2: 2 of 16" in record.message


def test_three_pairs_are_worse_whatever_the_fourth_is() -> None:
    """Whichever side failed in it; two pairs alone confirm nothing, and equal ones are no pass."""
    broken = measured(status=Status.INVALID, reason="2 of 16 requests failed")
    for lost in (Pair(broken, measured(speed=0.9)), Pair(measured(), broken)):
        record = judge_pairs(CELL, [*pairs(0.9, 0.91, 0.9), lost], gate())
        assert record.outcome is Outcome.REGRESSED
        assert len(record.attempts) == 4
        assert record.notes[-1].startswith("left out: ")
        assert "pair 4: 2 of 16" in record.message
        for others in (pairs(0.9, 0.9), pairs(1.0, 1.0, 1.0)):
            assert judge_pairs(CELL, [*others, lost], gate()).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("between", "power"), [(0.0, (0.97, 0.9)), (0.01, (0.8, 0.15)), (0.02, None)]
)
def test_false_alarms_and_power_over_matrices(
    between: float, power: tuple[float, float] | None
) -> None:
    """100 matrices of 12 cells in windows of 0.6 % error, and noise between windows that they know
    nothing of, as texts in regimes make it: at most one with a false failure after confirmation; a
    last cell 5 and 3 % slower is found as often as that noise allows."""
    rng = np.random.default_rng(7)
    known, cells, noise = gate(), 12, 0.006

    def draw(speed: float) -> Pair:
        a, b = np.exp(math.hypot(noise, between) * rng.standard_normal(2))
        errors = {"total_tok_s": 1600 * noise, "itl_ms": 10 * noise, "steps_s": 800 * noise}
        sides = (measured(speed=s, ttft_ms=300.0, std_errors=errors) for s in (a, b * speed))
        return Pair(*sides)

    def measure(speed: float, others: list[list[Pair]]) -> bool:
        drawn = [draw(speed) for _ in range(2)]
        failed = False
        if needs_confirmation(judge_pairs(CELL, drawn, known, others), drawn):
            drawn += [draw(speed) for _ in range(3)]
            failed = judge_pairs(CELL, drawn, known, others).outcome is Outcome.REGRESSED
        others.append(drawn)
        return failed

    false, found = 0, [0, 0]
    for _ in range(100):
        before: list[list[Pair]] = []
        failed = [measure(1.0, before) for _ in range(cells)]
        false += any(failed)
        for place, speed in enumerate((0.95, 0.97)):
            found[place] += measure(speed, list(before))
    assert false <= 1
    if power is not None:
        assert found[0] / 100 >= power[0]
        assert found[1] / 100 >= power[1]


@pytest.fixture
def both(sim: str, other_sim: str) -> list[str]:
    return [f"--llm-url={sim}", f"--llm-against={other_sim}"]


def test_two_servers_of_one_build_pass(
    perf: pytest.Pytester, both: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0, the other server named, each cell measured twice at either, the matrix not judged;
    the progress says which one is measured."""
    shown: list[str] = []
    begin = Board.begin

    def note(board: Board, cell: Cell) -> None:
        begin(board, cell)
        shown.append(board.running.server if board.running else "")

    monkeypatch.setattr(Board, "begin", note)
    result = perf.runpytest("perf_tests", *both, *GRID, *SHORT, *WIDE, "-k", "prefill or c1")
    assert result.ret == 0, words(result)
    result.stdout.fnmatch_lines(["*against http://127.0.0.1:*", "*No regression in 2 measured*"])
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert report["against"] == both[1].partition("=")[2]
    assert [len(cell["attempts"]) for cell in report["cells"]] == [2, 2]
    tested, other = (option.partition("=")[2] for option in both)
    assert [name for name, _ in groupby(shown)] == [*[other, tested] * 2, other]


def test_two_models_are_compared_but_said(perf: pytest.Pytester, sim: str) -> None:
    """A quantization may be meant; another model by mistake must not look like a result."""
    text = (shipped("baselines") / "rtxpro6k_x4.yaml").read_text()
    text = text.replace("deepseek-ai/DeepSeek-V4.1-Flash-1017", "org/other")
    text = text.replace("served_model: deepseek", "served_model: other")
    (perf.mkdir("baselines") / "other.yaml").write_text(text)
    result = perf.runpytest(
        "perf_tests", f"--llm-url={sim}", "--llm-against=sim:other", *GRID, *SHORT, *WIDE,
        "-k", "prefill",
    )  # fmt: skip
    result.stdout.fnmatch_lines(
        ["*mismatch: the other server serves 'other', this one 'deepseek'*"]
    )


def test_the_option_with_a_bad_address_is_named(perf: pytest.Pytester, sim: str) -> None:
    result = perf.runpytest("perf_tests", f"--llm-url={sim}", "--llm-against=gpu1:8000", *GRID)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--llm-against: 'gpu1:8000' is not a server address*"])


def test_one_slower_than_the_other_fails(perf: pytest.Pytester, sim: str) -> None:
    """Exit 1 with the table of any regression; the re-run command names both servers."""
    result = perf.runpytest(
        "perf_tests", "--llm-url=sim?speed=0.4", f"--llm-against={sim}", *GRID, *SHORT, *WIDE,
        "-k", "c1",
    )  # fmt: skip
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "llmperf: measuring decode?512-c1? at sim?speed=0.4 (1 of 1*",
            "llmperf: decode?512-c1? at sim?speed=0.4: * tok/s*",
            f"total tok/s *: decode?512-c1? is worse than {sim} (5 pairs)",
            "*total tok/s*WORSE*",
            "*pairs, *",
        ]
    )
    assert f"\nA/B: sim?speed=0.4 against {sim}\n" in words(result)
    assert "of the 5 attempts" not in words(result)
    assert f"--llm-against {sim}" in words(result)


def test_the_other_server_can_be_started_too(perf: pytest.Pytester, sim: str) -> None:
    """--llm-serve-against; it is gone afterwards, and its log stays."""
    command = f"{sys.executable} -m pytest_llmperf.sim serve --port {{port}} --speed 4"
    result = perf.runpytest(
        "perf_tests", f"--llm-url={sim}", f"--llm-serve-against={command}", *GRID, *SHORT, *WIDE,
        "-k", "prefill",
    )  # fmt: skip
    assert result.ret == 0, words(result)
    assert "on http" in (perf.path / "llmperf-report/server-against.log").read_text()


@pytest.mark.usefixtures("quick")
def test_the_metrics_address_is_that_of_the_tested_server(
    perf: pytest.Pytester, both: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's gauges are its own."""
    found: list[tuple[str, str | None]] = []

    def note(connection: Connection) -> ServerApi:
        found.append((connection.url, connection.metrics_url))
        return ServerApi(connection)

    monkeypatch.setattr("pytest_llmperf.server.reach.ServerApi", note)
    tested, other = (option.partition("=")[2] for option in both)
    metrics = f"{tested}/metrics"
    options = (*GRID, *SHORT, *WIDE, "-k", "prefill", f"--llm-metrics-url={metrics}")
    perf.runpytest("perf_tests", *both, *options)
    assert found == [(tested, metrics), (other, None)]


def test_the_matrix_is_not_judged_by_one_start_of_each(
    perf: pytest.Pytester, both: list[str]
) -> None:
    perf.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
        "llm_contexts = 512\nllm_concurrency = 1\n"
    )
    result = perf.runpytest("perf_tests", *both, *SHORT, *WIDE, "-rs", "-p", "no:randomly")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*one start of each server*"])
