"""What a verdict says to people, as plain text. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pytest_llmperf.baseline.schema import CellBaseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.limit import LimitCheck
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.model.result import CellRecord, ChangedFact, Comparison, Measurement, Outcome

HEADINGS = ("metric", "baseline", "measured", "delta", "tolerance", "attempts", "verdict")
_LEFT = ("metric", "attempts", "verdict")

_OPENING = {
    Outcome.REGRESSED: "is worse than {}",
    Outcome.IMPROVED: "is better than {}",
    Outcome.INVALID: "lacks a metric of {}",
    Outcome.UNGATED: "has a speed that could not be judged against {}",
}


def table(record: CellRecord, outcome: Outcome, reference: str) -> str:
    """The cell's comparisons in one table, with what is known about the cause below it.

    Args:
        reference: what the cell was compared with.
    """
    decisive = {Outcome.REGRESSED: "worse", Outcome.IMPROVED: "better"}.get(outcome)
    moved = ", ".join(
        f"{METRICS[c.metric].label} {percent(c.delta)}"
        for c in record.comparisons
        if c.verdict == decisive
    )
    # first what fits into pytest's one line about a failure, which has the cell's name already
    title = f"{moved}: {record.cell}" if moved else record.cell
    title += f" {_OPENING[outcome].format(reference)}"
    rows = [HEADINGS, *(_row(c, record) for c in record.comparisons)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = [
        [t.ljust(w) if column[0] in _LEFT else t.rjust(w) for t in column]
        for column in columns
        for w in [max(map(len, column))]
    ]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    return "\n".join([title, "", *lines, *([""] if record.notes else []), *record.notes])


def _row(comparison: Comparison, record: CellRecord) -> tuple[str, ...]:
    metric = METRICS[comparison.metric]
    attempts = [m.value(metric.name) for m in record.attempts]
    loud = {"worse": "WORSE", "missing": "MISSING"}
    verdict = loud.get(comparison.verdict, comparison.verdict)
    return (
        _name(metric),
        _figure(metric, comparison.baseline),
        _figure(metric, comparison.measured),
        percent(comparison.delta),
        _tolerance(comparison),
        ", ".join(_figure(metric, v) for v in attempts) if len(attempts) > 1 else "",
        f"{verdict}: {comparison.why}" if comparison.why else verdict,
    )


def _name(metric: Metric) -> str:
    told = not metric.unit or metric.unit in metric.label or metric.unit == "1/s"
    return metric.label if told else f"{metric.label} ({metric.unit})"


def percent(fraction: float | None) -> str:
    """A signed change in percent; a dash where there is none."""
    return "-" if fraction is None else f"{100 * fraction:+.1f} %"


def _tolerance(comparison: Comparison) -> str:
    if comparison.tolerance is None:
        return "-"
    return f"{100 * comparison.tolerance:.1f} %" + (" weak" if comparison.weak else "")


def _figure(metric: Metric, value: float | None) -> str:
    return "-" if value is None else f"{value:,.{metric.digits}f}"


def broken_limits(
    cell_id: str, broken: Sequence[LimitCheck], attempts: Sequence[Measurement]
) -> str:
    """Every limit that a cell breaks: what, how much, which limit."""
    names = ", ".join(METRICS[check.metric].label for check in broken)
    lines = [f"{names} beyond its limit: {cell_id}"]
    for check in broken:
        metric = METRICS[check.metric]
        tries = ", ".join(_figure(metric, attempt.value(metric.name)) for attempt in attempts)
        lines.append(f"{check}{f'; attempts {tries}' if len(attempts) > 1 else ''}")
    return "\n".join(lines)


def which_part(compared: Sequence[Comparison]) -> list[str]:
    """Under speculative decoding, what moved: the engine's steps, or the tokens of each.

    tok/s is their product, so that their shares of the change are those of its logarithm.
    """
    deltas = {c.metric: c.delta for c in compared if c.delta is not None and c.delta > -1}
    steps, tokens = deltas.get("steps_s"), deltas.get("tokens_per_step")
    if steps is None or tokens is None:
        return []
    parts = (abs(math.log1p(steps)), abs(math.log1p(tokens)))
    figures = f"steps/s {percent(steps)}, tokens per step {percent(tokens)}"
    if parts[0] > 2 * parts[1]:
        cause = f"the engine got {'slower' if steps < 0 else 'faster'}"
    elif parts[1] > 2 * parts[0]:
        fewer = "fewer" if tokens < 0 else "more"
        cause = f"{fewer} draft tokens are accepted (other text, other draft model), not the engine"
    else:
        cause = "both the engine's speed and the acceptance of draft tokens changed"
    return [f"{figures}: {cause}"]


def suspicious(times: Mapping[str, float]) -> str:
    what = ", ".join(f"{METRICS[name].label} {ratio:.1f}" for name, ratio in times.items())
    return (
        f"suspicious: times better than the baseline: {what}; rule out a prefix cache that "
        "answered, errors counted as successes, or another model before accepting it"
    )


def drift(metric: Metric, values: Sequence[float]) -> str:
    course = " -> ".join(_figure(metric, v) for v in values)
    return (
        f"drift: {metric.label} went one way over the attempts ({course}); look for throttling, "
        "other load or a leak"
    )


def with_changes(message: str, facts: Collection[ChangedFact]) -> str:
    """A failed cell's message that names, right after what failed, what may explain it."""
    if not facts:
        return message
    title, _, rest = message.partition("\n")
    changed = f"changed since the baseline: {'; '.join(map(str, facts))}"
    return "\n".join([title, changed, *([rest] if rest else [])])


def at_starts(number: int, *, ours: bool) -> str:
    """At how many starts of the server a breach was seen; of one only, also what to do about it.

    Args:
        ours: the run has started the server, and may have done so again.
    """
    if number > 1:
        return f"so at {number} starts of the server"
    if ours:
        how = "--llm-restarts lets the run confirm it at others"
    else:
        how = (
            'let the run start the server (--llm-serve "..."), or measure in a second job too: '
            "llmperf compare BASELINE RESULTS.json --confirm SECOND.json"
        )
    return f"seen in one start of the server, and starts differ; to be sure: {how}"


def counted_otherwise(here: str, there: Collection[str]) -> str:
    return (
        f"output tokens were counted by {here} here, by {', '.join(sorted(there))} in the baseline"
    )


def not_in_baseline(cell: Cell, profile: str) -> str:
    return (
        f"{cell.id} is not in the baseline {profile}; --update-baselines stores it, "
        "--llm-allow-new lets it pass under CI"
    )


def capacity_up(cell: Cell, profile: str, stored: CellBaseline) -> str:
    return f"{cell.id} fits now; it did not in the baseline {profile}{_limits(stored)}"


def stored_runs(profile: str, number: int) -> str:
    return f"its baseline ({profile}, {_count(number, 'run')})"


def pairs(server: str, number: int) -> str:
    return f"{server} ({_count(number, 'pair')})"


def capacity_regression(cell_id: str, profile: str, stored: CellBaseline, why: str) -> str:
    runs = _count(len(stored.runs), "run")
    return f"{cell_id} does not fit any more: {why}; the baseline {profile} has numbers of {runs}"


def _limits(stored: CellBaseline) -> str:
    limits = stored.over_capacity
    if limits is None or limits.needs is None:
        return ""
    budget = "an unknown budget" if limits.budget is None else f"{limits.budget:,}"
    return f" ({limits.needs:,} KV tokens needed, {budget} there)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
