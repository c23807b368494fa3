"""When a run without a failing cell is still not green."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.result import CellRecord, Outcome
from pytest_llmperf.verdict import why_empty
from tests.verdict.test_judge import over_capacity


def records(*outcomes: Outcome) -> list[CellRecord]:
    return [CellRecord(cell="decode[8K-c1]", outcome=outcome) for outcome in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ([Outcome.PASS, Outcome.OVERCAP, Outcome.UNGATED, Outcome.NEW], ""),
        ([Outcome.IMPROVED], ""),
        ([Outcome.UPDATED], ""),
        ([Outcome.MEASURED], ""),
        ([Outcome.PASS, Outcome.INVALID], ""),
        ([Outcome.REGRESSED], ""),
        ([Outcome.NEW, Outcome.INVALID], ""),
        ([Outcome.UNGATED, Outcome.OVERCAP], "nothing could be judged: every cell is new or too "),
        ([Outcome.UNGATED, Outcome.NEW], "nothing could be judged: every cell is new or too noisy"),
        ([Outcome.NEW, Outcome.OVERCAP], "nothing to compare with: every cell is new"),
        ([Outcome.OVERCAP], "nothing was measured"),
        ([Outcome.INVALID], "nothing was measured"),
        ([], "nothing was measured"),
    ],
)
def test_nothing_measured_and_nothing_judged_are_not_green(
    outcomes: list[Outcome], why: str
) -> None:
    """With the reason. A cell that failed says its own."""
    assert bool(why_empty(records(*outcomes))) == bool(why)
    assert why_empty(records(*outcomes)).startswith(why)


def test_a_cell_over_capacity_is_not_measured_by_being_accepted() -> None:
    """As an update does with one that the profile does not have."""
    (accepted,) = records(Outcome.UPDATED)
    accepted = accepted.model_copy(update={"measurement": over_capacity()})
    assert why_empty([accepted]) == "nothing was measured"
    assert why_empty([accepted, *records(Outcome.UPDATED)]) == ""
