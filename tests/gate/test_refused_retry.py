"""What the server refuses while a breach is confirmed is no capacity lost."""

from __future__ import annotations

import pytest

from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Capacity, Measurement, Outcome, RunResult, Status
from pytest_llmperf.report.json import read
from tests.gate.project import LAB, WIDE, scaled, write_profile

REFUSED = "the server admits 1 of 2"


@pytest.mark.parametrize("answers", ["slow refused slow", "slow refused refused"])
def test_a_retry_that_is_refused(
    perf: pytest.Pytester,
    measured: RunResult,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    answers: str,
) -> None:
    """The server held the cell a moment ago: it is slower, or it cannot be told; in no case is it a
    CAPACITY REGRESSION."""
    write_profile(perf, measured, 1.0)
    words = iter(answers.split())
    found = {record.cell: record.measurement for record in measured.cells}

    async def decode(self: Measurer, cell: Cell) -> Measurement:
        measurement = found[cell.id]
        assert measurement is not None
        if next(words) == "slow":
            return scaled(measurement, 0.1)
        lost = {"status": Status.OVER_CAPACITY, "reason": REFUSED, "total_tok_s": None}
        return measurement.model_copy(update={**lost, "capacity": Capacity(reason=REFUSED)})

    monkeypatch.setattr(Measurer, "decode", decode)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-k", "decode and c2")
    assert result.ret == 1
    (record,) = read(perf.path / "llmperf-report/results.json").cells
    assert record.outcome in (Outcome.REGRESSED, Outcome.INVALID)
    assert REFUSED in record.message
