"""When a run without a failing cell is still not green."""

from __future__ import annotations

import pytest

from pytest_llmperf.result import CellRecord, Outcome
from pytest_llmperf.verdict import count


def records(*outcomes: Outcome) -> list[CellRecord]:
    return [CellRecord(cell="decode[8K-c1]", outcome=outcome) for outcome in outcomes]


def test_outcomes_are_counted_in_their_order() -> None:
    """Those that occurred only."""
    totals = count(records(Outcome.OVERCAP, Outcome.PASS, Outcome.OVERCAP, Outcome.IMPROVED))
    assert list(totals.counts.items()) == [
        (Outcome.PASS, 1),
        (Outcome.IMPROVED, 1),
        (Outcome.OVERCAP, 2),
    ]


@pytest.mark.parametrize(
    ("outcomes", "status", "why"),
    [
        ([Outcome.PASS, Outcome.OVERCAP, Outcome.UNGATED, Outcome.NEW], 0, ""),
        ([Outcome.IMPROVED], 0, ""),
        ([Outcome.UPDATED], 0, ""),
        ([Outcome.MEASURED], 0, ""),
        ([Outcome.PASS, Outcome.REGRESSED], 1, ""),
        ([Outcome.PASS, Outcome.CAPACITY_REGRESSION], 1, ""),
        ([Outcome.PASS, Outcome.INVALID], 1, ""),
        ([Outcome.UNGATED, Outcome.OVERCAP], 1, "nothing could be judged"),
        ([Outcome.NEW], 1, "nothing could be judged"),
        ([Outcome.OVERCAP], 1, "nothing was measured"),
        ([Outcome.INVALID], 1, "nothing was measured"),
        ([], 1, "nothing was measured"),
    ],
)
def test_exit_status(outcomes: list[Outcome], status: int, why: str) -> None:
    """Nothing measured, nothing judged: exit 1, with the reason."""
    totals = count(records(*outcomes))
    assert totals.exit_status == status
    assert totals.empty.startswith(why)
    assert bool(totals.empty) == bool(why)


def test_new_cells_count_while_a_baseline_is_written() -> None:
    """The first run of a profile."""
    assert count(records(Outcome.NEW), updating=True).exit_status == 0
