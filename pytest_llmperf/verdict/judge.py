"""One cell: what its attempts measured, against its baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import HEADLINE, METRICS, SPEEDS, Metric, metrics_of
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement, Notice, Outcome, Status
from pytest_llmperf.model.state import lost_state
from pytest_llmperf.verdict import words
from pytest_llmperf.verdict.compare import change_of, compare, usable
from pytest_llmperf.verdict.gate import Gate, Neighbour

MEASUREMENTS = 3
"""Of a cell, before it is called worse."""

SUSPICIOUS = 2.0
"""A metric this many times better than its baseline is more often a fault than a feat."""


def judge(
    cell: Cell,
    attempts: Sequence[Measurement],
    gate: Gate | None,
    others: Iterable[CellRecord] = (),
) -> CellRecord:
    """The verdict on a cell after one attempt or, confirming a breach, after up to three.

    Of several attempts the median of each metric is judged. Without a gate (no profile, or one
    that does not match this server) nothing is compared.

    Args:
        cell: what was measured.
        attempts: every measurement of it, of one server start or of several.
        gate: what it is judged by.
        others: verdicts on other cells of the run: what they did together is the run's, not this
            cell's.
    """
    record = CellRecord(
        cell=cell.id,
        outcome=Outcome.MEASURED,
        measurement=attempts[-1],
        attempts=list(attempts),
    )
    measured = any(attempt.status is Status.VALID for attempt in attempts)
    for number, attempt in enumerate(attempts, start=1):
        refused = attempt.status is Status.OVER_CAPACITY
        if refused and not measured:
            return _judge_capacity(record, attempt, gate)
        # what the server held a moment ago is no capacity lost
        if why := f"the server took less of it: {_limit(attempt)}" if refused else fault(attempt):
            which = f"attempt {number} of {len(attempts)}: " if len(attempts) > 1 else ""
            if worse := _worse_without(cell, attempts, gate, others, f"left out: {which}{why}"):
                return worse
            return _with(record, Outcome.INVALID, f"{cell.id} is invalid: {which}{why}", attempt)
    if gate is None:
        return record
    stored = gate.cells.get(cell.id)
    if stored is None:
        return _with(record, Outcome.NEW, words.not_in_baseline(cell, gate.profile))
    if stored.over_capacity is not None:
        return _with(record, Outcome.NEW, words.capacity_up(cell, gate.profile, stored))
    return _judge_values(record, cell, gate, list(others))


def needs_confirmation(record: CellRecord) -> bool:
    """Whether to measure the cell once more before its test fails: at another start of the server
    where there can be one, else at this one."""
    unsure = any(c.verdict in ("worse", "missing") for c in record.comparisons)
    unsure |= any(check.verdict == "broken" for check in record.limits)
    return unsure and record.outcome.failed and len(record.attempts) < MEASUREMENTS


def fails(record: CellRecord, gate: Gate | None) -> bool:
    """Whether the cell's own test fails; its message then says why."""
    if gate is not None and record.outcome is Outcome.NEW:
        return gate.fail_on_new and record.cell not in gate.cells
    if gate is not None and record.outcome is Outcome.IMPROVED:
        return gate.fail_on_improvement
    return record.outcome.failed


def fault(attempt: Measurement) -> str:
    """Why an attempt is no measurement, or empty."""
    if attempt.status is Status.INVALID:
        return attempt.reason or "no reason was given"
    if attempt.status is Status.OVER_CAPACITY:
        return ""
    for metric in metrics_of(attempt.phase):
        value = attempt.value(metric.name)
        if value is None and metric.name == HEADLINE[attempt.phase]:
            return f"{metric.label} is missing"
        if value is not None and not usable(value) and attempt.phase in metric.gated:
            return f"{metric.label} of {value} is no measurement"
    return ""


def _worse_without(
    cell: Cell,
    attempts: Sequence[Measurement],
    gate: Gate | None,
    others: Iterable[CellRecord],
    note: str,
) -> CellRecord | None:
    """The verdict of the sound attempts, where two or more are left and are worse, together and
    each by itself: a third that failed makes the cell no better."""
    sound = [a for a in attempts if a.status is Status.VALID and not fault(a)]
    if len(sound) < 2:
        return None
    others = list(others)
    together, *apart = (
        judge(cell, some, gate, others) for some in (sound, *([one] for one in sound))
    )
    if any(record.outcome is not Outcome.REGRESSED for record in (together, *apart)):
        return None
    return with_left_out(together, attempts, note)


def with_left_out(record: CellRecord, attempts: Sequence[Measurement], note: str) -> CellRecord:
    """A verdict on the sound ones of ``attempts``, with a note on the others."""
    return record.model_copy(
        update={
            "attempts": list(attempts),
            "notes": [*record.notes, note],
            "message": f"{record.message}\n{note}",
        }
    )


def _limit(unfit: Measurement) -> str:
    return (unfit.capacity.reason if unfit.capacity else unfit.reason) or unfit.reason


def _judge_capacity(record: CellRecord, unfit: Measurement, gate: Gate | None) -> CellRecord:
    why = _limit(unfit)
    stored = gate.cells.get(record.cell) if gate else None
    if gate is None or stored is None or stored.over_capacity is not None:
        return _with(record, Outcome.OVERCAP, why, unfit)
    text = words.capacity_regression(record.cell, gate.profile, stored, why)
    return _with(record, Outcome.CAPACITY_REGRESSION, text, unfit)


def _company(
    metric: Metric, cell: Cell, start: int, gate: Gate, others: Sequence[CellRecord]
) -> list[Neighbour]:
    """What the metric did in the other cells of the same phase and server start."""
    alike = [
        other
        for other in others
        if other.cell != cell.id
        and other.measurement is not None
        and (other.measurement.phase, other.measurement.start) == (cell.phase, start)
    ]
    return [found for other in alike if (found := change_of(metric, other, gate))]


def _judge_values(
    record: CellRecord, cell: Cell, gate: Gate, others: Sequence[CellRecord]
) -> CellRecord:
    attempts, stored = record.attempts, gate.cells[cell.id]
    start = attempts[0].start
    compared = [
        compare(metric, cell, attempts, gate, _company(metric, cell, start, gate, others))
        for metric in metrics_of(cell.phase)
        if stored.values(metric.name)
    ]
    by = {
        word: [c for c in compared if c.verdict == word] for word in ("missing", "worse", "better")
    }
    decisive = next((found[0] for found in by.values() if found), None)
    judged = _with_source(_median_attempt(attempts, decisive), cell, gate)
    if len(attempts) > 1:  # each metric has its own median, which no single attempt need have
        medians = {c.metric: c.measured for c in compared if c.measured is not None}
        judged = judged.model_copy(update=medians)
    record = record.model_copy(
        update={
            "comparisons": compared,
            "measurement": judged,
            "notes": _notes(compared, attempts),
        }
    )
    if by["missing"]:
        outcome = Outcome.INVALID
    elif by["worse"]:
        outcome = Outcome.REGRESSED
    elif by["better"]:
        outcome = Outcome.IMPROVED
    elif any(c.gated and c.metric in SPEEDS[cell.phase] for c in compared):
        # TTFT alone, say, cannot vouch for a cell whose speed nobody could judge
        return _with(record, Outcome.PASS, "")
    else:
        outcome = Outcome.UNGATED
    runs = max((c.n for c in compared), default=0)
    return _with(record, outcome, words.table(record, outcome, gate.name_reference(runs)))


def _median_attempt(attempts: Sequence[Measurement], by: Comparison | None) -> Measurement:
    """The attempt in the middle, by the metric that decided the verdict."""
    if by is None or by.verdict == "missing":
        return attempts[-1]
    ranked = sorted(attempts, key=lambda m: m.value(by.metric) or 0.0)
    return ranked[len(ranked) // 2]


def _with_source(measurement: Measurement, cell: Cell, gate: Gate) -> Measurement:
    """Counts of different sources may differ, though the server did the same: never silently."""
    here, there = measurement.token_source, gate.token_sources.get(cell.id)
    if not here or not there or here in there:
        return measurement
    notice = Notice(code="token-source", text=words.counted_otherwise(here, there))
    return measurement.model_copy(update={"warnings": [*measurement.warnings, notice]})


def _notes(compared: Sequence[Comparison], attempts: Sequence[Measurement]) -> list[str]:
    notes = []
    if any(c.verdict in ("worse", "better") for c in compared):
        notes += words.which_part(compared)
    times = {
        c.metric: 1 + c.delta if METRICS[c.metric].better == "higher" else 1 / (1 + c.delta)
        for c in compared
        if c.verdict == "better" and c.delta is not None
    }
    if implausible := {name: ratio for name, ratio in times.items() if ratio >= SUSPICIOUS}:
        notes.append(words.suspicious(implausible))
    for comparison in compared:
        metric = METRICS[comparison.metric]
        sound = [m for m in attempts if not lost_state(metric.name, m)]
        values = [v for m in sound if usable(v := m.value(metric.name))]
        if len(values) < MEASUREMENTS:
            continue
        errors = [m.std_errors.get(metric.name, 0.0) for m in (sound[0], sound[-1])]
        chance = 2 * math.hypot(*errors) / values[0]
        if comparison.verdict == "worse" and _drifts(values, max(metric.floor, chance)):
            notes.append(words.drift(metric, values))
    return notes


def _drifts(values: Sequence[float], least: float) -> bool:
    """Whether three attempts or more go one way, by more than counts and the windows explain."""
    steps = [b - a for a, b in pairwise(values)]
    one_way = all(s > 0 for s in steps) or all(s < 0 for s in steps)
    return len(values) >= 3 and one_way and abs(values[-1] / values[0] - 1) > least


def _with(
    record: CellRecord, outcome: Outcome, message: str, attempt: Measurement | None = None
) -> CellRecord:
    update: dict[str, object] = {"outcome": outcome, "message": message}
    if attempt is not None:
        update["measurement"] = attempt
    return record.model_copy(update=update)
