"""With --update-baselines a gain is stored only when further attempts show it too."""

from __future__ import annotations

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, Outcome, RunResult
from pytest_llmperf.report.json import read
from tests.gate.project import LAB, WIDE, scaled, words, write_profile

UPDATE = ["--update-baselines", "-k", "decode and c1"]
CELL = "decode[512-c1]"


@pytest.fixture
def speeds(measured: RunResult, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fill it with what each attempt in turn is to measure, as factors of what ``measured`` did;
    the last one holds on."""
    factors: list[float] = []
    found = {record.cell: record.measurement for record in measured.cells}

    async def decode(self: Measurer, cell: Cell) -> Measurement:
        measurement = found[cell.id]
        assert measurement is not None
        return scaled(measurement, factors.pop(0) if len(factors) > 1 else factors[0])

    monkeypatch.setattr(Measurer, "decode", decode)
    return factors


@pytest.mark.parametrize("mode", ["moved", "better", "all"])
def test_a_lucky_window_is_not_stored_as_better(
    perf: pytest.Pytester, measured: RunResult, url: str, speeds: list[float], mode: str
) -> None:
    """Ten times as fast once, as ever afterwards: what is stored is as ever."""
    profile = write_profile(perf, measured, 1.0)
    before = load(profile).cells[CELL].values("total_tok_s")
    speeds += [10.0, 1.0]
    perf.runpytest("perf_tests", url, *LAB, *WIDE, *UPDATE, f"--llm-update-mode={mode}")
    (record,) = read(perf.path / "llmperf-report/results.json").cells
    assert len(record.attempts) > 1
    after = load(profile).cells[CELL].values("total_tok_s")
    assert after[-1] == pytest.approx(before[-1], rel=0.01)


def test_a_gain_that_lasts_is_stored(
    perf: pytest.Pytester, measured: RunResult, url: str, speeds: list[float]
) -> None:
    profile = write_profile(perf, measured, 1.0)
    (before,) = load(profile).cells[CELL].values("total_tok_s")
    speeds += [10.0]
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, *UPDATE)
    assert result.ret == 0, words(result)
    (record,) = read(perf.path / "llmperf-report/results.json").cells
    assert (record.outcome, len(record.attempts)) == (Outcome.UPDATED, 3)
    assert load(profile).cells[CELL].values("total_tok_s")[-1] > 5 * before


@pytest.mark.parametrize("options", [[], ["--update-baselines", "--llm-update-mode=add"]])
def test_a_gain_that_replaces_nothing_is_measured_once(
    perf: pytest.Pytester, measured: RunResult, url: str, speeds: list[float], options: list[str]
) -> None:
    """Without an update; and a run that is added to the others shows what such a run can be."""
    write_profile(perf, measured, 1.0)
    speeds += [10.0]
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-k", "decode and c1", *options)
    assert result.ret == 0, words(result)
    (record,) = read(perf.path / "llmperf-report/results.json").cells
    assert len(record.attempts) == 1
