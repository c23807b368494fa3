"""Whether a run in which no cell failed may be green. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmperf.model.result import CellRecord, Outcome, Status

_FINE = (Outcome.PASS, Outcome.IMPROVED, Outcome.UPDATED, Outcome.MEASURED)
_UNMEASURED = (Outcome.OVERCAP, Outcome.CAPACITY_REGRESSION, Outcome.INVALID)


def why_empty(records: Iterable[CellRecord]) -> str:
    """Why a run that measured nothing, or could judge nothing, is not green; empty if it is.

    Cells measured without a profile are fine: the user asked for no comparison.
    """
    found = list(records)
    measured = {record.outcome for record in found if not _unmeasured(record)}
    if not measured:
        return "nothing was measured"
    if measured.intersection(_FINE) or any(record.outcome.failed for record in found):
        return ""
    if measured == {Outcome.NEW}:
        return "nothing to compare with: every cell is new"
    return "nothing could be judged: every cell is new or too noisy"


def _unmeasured(record: CellRecord) -> bool:
    attempt = record.measurement
    over_capacity = attempt is not None and attempt.status is Status.OVER_CAPACITY
    return over_capacity or record.outcome in _UNMEASURED
