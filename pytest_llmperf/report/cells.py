"""A cell of a run, as reports show it: its status, its number, its verdict, its table row. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.model.grid import Cell, Phase, format_tokens
from pytest_llmperf.model.metrics import HEADLINE, METRICS, SPEEDS, Metric
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement, Outcome, Status
from pytest_llmperf.report.numbers import MISSING, change, interval, number, percent, with_unit

PHASES: dict[Phase, str] = {"prefill": "Prefill", "decode": "Sustained decode"}
STATUSES = {
    Status.VALID: "Valid",
    Status.INVALID: "Invalid",
    Status.OVER_CAPACITY: "Over capacity",
}


@dataclass(frozen=True)
class Column:
    """A column of the table of all measurements."""

    label: str
    numeric: bool = True


@dataclass(frozen=True)
class Value:
    """A table entry: as people read it, and as it sorts (None sorts last)."""

    text: str
    value: float | None = None


COLUMNS = (
    Column("Phase", numeric=False),
    Column("Context"),
    Column("Requests at once"),
    Column("Status", numeric=False),
    Column("Verdict", numeric=False),
    Column("Total tok/s"),
    Column("Baseline tok/s"),
    Column("Change"),
    Column("Tolerance"),
    Column("Per request tok/s"),
    Column("TTFT"),
    Column("Time between tokens"),
    Column("Average active requests"),
    Column("Completed requests"),
    Column("Output tokens"),
    Column("Measured for"),
    Column("95 % interval"),
    Column("Steps/s"),
    Column("Tokens per step"),
    Column("Warnings", numeric=False),
    Column("Attempts"),
)


def status(record: CellRecord) -> Status:
    """What became of a cell: its verdict can make a valid measurement an invalid cell."""
    if record.outcome is Outcome.INVALID:
        return Status.INVALID
    if record.measurement is not None:
        return record.measurement.status
    over = (Outcome.OVERCAP, Outcome.CAPACITY_REGRESSION)
    return Status.OVER_CAPACITY if record.outcome in over else Status.INVALID


def valid(record: CellRecord | None) -> Measurement | None:
    """The measurement of a cell if it may be shown as a number."""
    return record.measurement if record and status(record) is Status.VALID else None


def reasons(record: CellRecord) -> list[str]:
    """What to say beside a cell's numbers, or in their place.

    The message of a cell that was compared is a table for its test; reports draw their own.
    """
    drawn = record.comparisons or record.outcome is Outcome.LIMIT
    why = [] if drawn else [record.message]
    if drawn:
        why = [str(check) for check in record.limits if check.verdict == "broken"]
    if not any(why) and record.measurement is not None:
        why = [record.measurement.reason]
    return [text for text in (*why, *record.notes) if text]


def list_watched(record: CellRecord) -> list[str]:
    """What a cell would have failed by, were it not watched only."""
    found = [str(check) for check in record.limits if check.verdict == "watched"]
    for comparison in record.comparisons:
        if comparison.verdict == "watched":
            name, base, measured, delta, allowed = comparison_texts(comparison)
            found.append(f"{name}: {base} -> {measured} ({delta}, tolerance {allowed})")
    return found


def headline(record: CellRecord) -> Comparison | None:
    """The comparison of the cell's tok/s, if it was compared."""
    name = HEADLINE[Cell.parse(record.cell).phase]
    return next((c for c in record.comparisons if c.metric == name), None)


def steadiest(record: CellRecord) -> Comparison | None:
    """What tells most surely of the cell's speed: its steps/s where both sides count them."""
    speeds = SPEEDS[Cell.parse(record.cell).phase]
    judged = [c for c in record.comparisons if c.metric in speeds and c.delta is not None]
    return min(judged, key=lambda c: speeds.index(c.metric), default=None)


def speed_change(record: CellRecord) -> str:
    """How far the cell's speed moved; none where its own window could not tell it from none."""
    judged = steadiest(record)
    if judged is None or judged.delta is None:
        return MISSING
    m = record.measurement
    error = m.std_errors.get(judged.metric, 0.0) if m else 0.0
    unsure = judged.measured is not None and abs(judged.delta) * judged.measured < 1.96 * error
    return "±0 %" if unsure and judged.verdict in ("ok", "observed") else change(judged.delta)


def telling(record: CellRecord) -> list[Comparison]:
    """The comparisons for which a cell failed: what got worse, or better where that fails too."""
    found = [c for c in record.comparisons if c.verdict in ("worse", "missing")]
    if not found and record.outcome is Outcome.IMPROVED:
        found = [c for c in record.comparisons if c.verdict == "better"]
    return found


def speed(measurement: Measurement) -> float | None:
    """The cell's tok/s: prompt tokens for prefill, output tokens for decode."""
    return measurement.value(HEADLINE[measurement.phase])


def metric(comparison: Comparison) -> Metric:
    return METRICS[comparison.metric]


def goodness(comparison: Comparison | None) -> float:
    """How far a value moved, in tolerances; above 0 is better, below -1 is a regression."""
    if comparison is None or comparison.delta is None or not comparison.tolerance:
        return 0.0
    sign = 1 if metric(comparison).better == "higher" else -1
    return sign * comparison.delta / comparison.tolerance


def comparison_texts(comparison: Comparison) -> tuple[str, str, str, str, str]:
    """Metric, baseline, measured, change and tolerance, as people read them."""
    kind = metric(comparison)
    unit = kind.unit if kind.unit == "ms" else ""
    return (
        kind.label + (f", {unit}" if unit else ""),
        number(comparison.baseline, kind.digits),
        number(comparison.measured, kind.digits),
        change(comparison.delta),
        tolerance(comparison),
    )


def attempt_texts(record: CellRecord, comparison: Comparison) -> str:
    """The metric's value in each attempt; empty for a cell that was measured once."""
    if len(record.attempts) < 2:
        return ""
    kind = metric(comparison)
    return ", ".join(number(one.value(kind.name), kind.digits) for one in record.attempts)


def start_note(record: CellRecord, attempt: Measurement) -> str:
    """``start 2 of the server``, where the attempts at a cell are of several starts."""
    if len({one.start for one in record.attempts}) < 2:
        return ""
    return f"start {attempt.start} of the server"


def verdict_note(comparison: Comparison) -> str:
    """The verdict on one metric and why: ``worse``, ``observed: not gated by default``."""
    return f"{comparison.verdict}: {comparison.why}" if comparison.why else comparison.verdict


def tolerance(comparison: Comparison | None) -> str:
    """How far a metric may move: ``±7.0 % weak``."""
    if comparison is None or comparison.tolerance is None:
        return MISSING
    return f"±{percent(comparison.tolerance)}" + (" weak" if comparison.weak else "")


def row(record: CellRecord) -> list[Value]:
    """The cell's line in the table of all measurements, in the order of ``COLUMNS``."""
    cell = Cell.parse(record.cell)
    m, judged = valid(record), headline(record)
    base, delta = (judged.baseline, judged.delta) if judged else (None, None)
    ci = m.total_tok_s_ci95 if m else None
    warnings = record.measurement.warnings if record.measurement else []

    def value(name: str, digits: int = 1, unit: str = "") -> Value:
        amount: float | None = getattr(m, name, None)
        return Value(with_unit(amount, unit, digits), amount)

    rate = speed(m) if m else None
    active = "in_flight_avg" if m and m.active_avg is None else "active_avg"
    attempts = len(record.attempts) or int(record.measurement is not None)
    return [
        Value(PHASES[cell.phase]),
        Value(format_tokens(cell.context), cell.context),
        Value(str(cell.concurrency), cell.concurrency),
        Value(STATUSES[status(record)]),
        Value(record.outcome.value),
        Value(number(rate), rate),
        Value(number(base), base),
        Value(change(delta), delta),
        Value(tolerance(judged), judged.tolerance if judged else None),
        value("per_request_tok_s"),
        value("ttft_ms", 0, "ms"),
        value("itl_ms", 1, "ms"),
        value(active),
        value("completed", 0),
        value("output_tokens", 0),
        value("measured_s", 1, "s"),
        Value(interval(ci), ci[0] if ci else None),
        value("steps_s", 2),
        value("tokens_per_step", 2),
        Value(", ".join(notice.code for notice in warnings) or MISSING),
        Value(str(attempts), attempts),
    ]
