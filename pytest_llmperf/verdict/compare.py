"""One metric of one cell against its baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeGuard

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import Metric
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement
from pytest_llmperf.model.state import BUFFERED, UNMEASURABLE, UNSURE, lost_state
from pytest_llmperf.verdict.gate import NEEDS_BATCHES, Gate, Neighbour, Tolerance
from pytest_llmperf.verdict.noise import beyond, towards_worse

TTFT = ("ttft_ms", "ttft_p99_ms")
"""Medians over requests that queue behind each other: their spread is the queue, not an error. How
far they move by chance is seen between runs only, so that a window's own error is not added."""


def compare(
    metric: Metric,
    cell: Cell,
    attempts: Sequence[Measurement],
    gate: Gate,
    company: Sequence[Neighbour] = (),
) -> Comparison:
    """The median of valid attempts against the median of the baseline's runs, which exist.

    An attempt whose state is not the baseline's (a buffered stream, a cold prompt, steps that were
    not counted) gives way to the others; where none is left, the lost state is the finding.
    """
    runs = gate.cells[cell.id].values(metric.name)
    baseline = median(runs)
    having = [m for m in attempts if usable(m.value(metric.name))]
    sound = [m for m in having if not lost_state(metric.name, m)]
    states = [state for m in attempts if (state := lost_state(metric.name, m))]
    # what is ours excuses nothing else
    lost = next((state for state in states if state != UNSURE), states[0] if states else "")
    compared = sound or ([] if lost in UNMEASURABLE else having)
    values = [v for m in compared if usable(v := m.value(metric.name))]
    measured = median(values) if values else None
    found = Comparison(
        metric=metric.name,
        baseline=baseline if usable(baseline) else None,
        measured=measured,
        delta=measured / baseline - 1 if measured and usable(baseline) else None,
        tolerance=None,
        n=len(runs),
        gated=False,
        verdict="observed",
    )
    gated, watched = gate.gates(metric, cell), gate.watches(metric, cell)
    if not usable(baseline):
        return found.model_copy(update={"why": "its baseline is no value"})
    lacking = [m for m in attempts if m not in having and not lost_state(metric.name, m)]
    if measured is None or lacking:
        gated = gated and (lost != UNSURE or bool(lacking))
        fails = "worse" if lost == BUFFERED else "missing"
        verdict = "observed" if not gated else "watched" if watched else fails
        why = f"{lost}, which its baseline was not" if lost == BUFFERED else lost
        why = "" if lost == UNSURE and lacking else why
        update = {"gated": gated, "verdict": verdict, "why": why or "not measured now"}
        return found.model_copy(update=update)
    tolerance = gate.tolerance(metric, cell, relative_error(metric, compared), company)
    side = _verdict(metric, cell, values, baseline, tolerance, gate)
    return found.model_copy(
        update={
            "tolerance": tolerance.fraction,
            "weak": tolerance.weak,
            "gated": tolerance.gated,
            "verdict": "watched" if side == "worse" and watched else side,
            "why": tolerance.why if side == "observed" else lost if side == "worse" else "",
        }
    )


def change_of(metric: Metric, record: CellRecord, gate: Gate) -> Neighbour | None:
    """How far the metric moved in a cell that was judged; None where it says nothing."""
    cell = Cell.parse(record.cell)
    found = next((c for c in record.comparisons if c.metric == metric.name), None)
    if found is None or found.tolerance is None or not usable(found.measured):
        return None
    assert found.baseline is not None
    error = relative_error(metric, record.attempts)
    if error is None:
        return None
    change = math.log(found.measured / found.baseline)
    return Neighbour(float(towards_worse(metric, change)), gate.variance(metric, cell, error))


def usable(value: float | None) -> TypeGuard[float]:
    """Whether this is a value at all: NaN, infinity, zero, negative and missing are none."""
    return value is not None and math.isfinite(value) and value > 0


def relative_error(metric: Metric, attempts: Sequence[Measurement]) -> float | None:
    """Relative standard error of one attempt: the middle one of those that know theirs."""
    if metric.name in TTFT:
        return 0.0
    relative = [
        error / value
        for m in attempts
        if (error := m.std_errors.get(metric.name)) is not None
        and (value := m.value(metric.name)) is not None
        and math.isfinite(error)
        and error >= 0
    ]
    if not relative and metric.name not in NEEDS_BATCHES:
        return 0.0
    return median(relative) if relative else None


def _verdict(
    metric: Metric,
    cell: Cell,
    values: Sequence[float],
    baseline: float,
    tolerance: Tolerance,
    gate: Gate,
) -> Literal["ok", "worse", "better", "observed"]:
    """Of several attempts the median must be beyond the tolerance, and each beyond half of it: one
    that was as before has shown that the server still can.

    A metric too noisy to be gated says nothing within its noise; a fall beyond even that is one
    all the same, at the same chance of error.
    """
    limit = tolerance.fraction
    side = _side(metric, median(values), baseline, limit)
    if limit is not None and any(_side(metric, v, baseline, limit / 2) != side for v in values):
        side = "ok"
    fell = side == "worse" and limit is not None and gate.gates(metric, cell)
    return side if tolerance.gated or fell else "observed"


def _side(
    metric: Metric, measured: float, baseline: float, tolerance: float | None
) -> Literal["ok", "worse", "better"]:
    if tolerance is not None and not beyond(measured, baseline, tolerance):
        return "ok"
    return "worse" if metric.worse(measured, baseline) else "better"
