"""How a whole run ended: the counts of outcomes, and whether it may be green. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.result import CellRecord, Outcome

_JUDGED = (Outcome.PASS, Outcome.IMPROVED, Outcome.UPDATED)
_UNMEASURED = (Outcome.OVERCAP, Outcome.CAPACITY_REGRESSION, Outcome.INVALID)


@dataclass(frozen=True)
class Totals:
    """Counts of each outcome that occurred, in the order of ``Outcome``."""

    counts: Mapping[Outcome, int]
    empty: str = ""
    """Why a run without a failure is still not green; empty if it is."""

    @property
    def exit_status(self) -> int:
        """0 or 1. Cells that fail by option fail their own tests, which pytest counts itself."""
        return int(bool(self.empty) or any(outcome.failed for outcome in self.counts))


def count(records: Sequence[CellRecord], updating: bool = False) -> Totals:
    """Count outcomes. A run that measured nothing, or could judge nothing, is not green.

    Cells measured without a profile are no failure: the user asked for no comparison. New cells
    are judged by nothing, and count only while a baseline is being written (``updating``).
    """
    found = Counter(record.outcome for record in records)
    counts = {outcome: found[outcome] for outcome in Outcome if found[outcome]}
    fine = (*_JUDGED, Outcome.MEASURED, *((Outcome.NEW,) if updating else ()))
    empty = ""
    if all(outcome in _UNMEASURED for outcome in counts):
        empty = "nothing was measured"
    elif not any(outcome.failed or outcome in fine for outcome in counts):
        empty = "nothing could be judged: every cell is new or too noisy"
    return Totals(counts, empty)
