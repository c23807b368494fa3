"""One metric of one cell against its baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeGuard

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import Metric
from pytest_llmperf.model.result import Comparison, Measurement
from pytest_llmperf.verdict.gate import Gate, Tolerance
from pytest_llmperf.verdict.noise import beyond

BUFFERED = ("itl_ms", "ttft_ms", "ttft_p99_ms", "chunk_gap_p99_ms")
"""What cannot be had of a stream that something on the way collects."""

COUNTED = ("steps_s", "tokens_per_step")
"""What only the server's own counters tell, read at both edges of the window."""

TTFT = ("ttft_ms", "ttft_p99_ms")
"""Medians over requests that queue behind each other: their spread is the queue, not an error. How
far they move by chance is seen between runs only, so that a window's own error is not added."""


def compare(metric: Metric, cell: Cell, attempts: Sequence[Measurement], gate: Gate) -> Comparison:
    """The median of valid attempts against the median of the baseline's runs, which exist."""
    runs = gate.cells[cell.id].values(metric.name)
    baseline = median(runs)
    values = [v for m in attempts if usable(v := m.value(metric.name))]
    excuse = next((text for m in attempts if (text := _excuse(metric, m))), "")
    known = usable(baseline) and len(values) == len(attempts)
    if excuse or not known:
        missing = not excuse and gate.gates(metric, cell)
        return Comparison(
            metric=metric.name,
            baseline=baseline if usable(baseline) else None,
            measured=median(values) if values else None,
            delta=median(values) / baseline - 1 if values and usable(baseline) else None,
            tolerance=None,
            n=len(runs),
            gated=missing,
            verdict="missing" if missing else "observed",
            why=excuse or ("not measured now" if usable(baseline) else "its baseline is no value"),
        )
    measured = median(values)
    tolerance = gate.tolerance(metric, cell, _error(metric, attempts))
    verdict = _verdict(metric, cell, measured, baseline, tolerance, gate)
    return Comparison(
        metric=metric.name,
        baseline=baseline,
        measured=measured,
        delta=measured / baseline - 1,
        tolerance=tolerance.fraction,
        n=len(runs),
        weak=tolerance.weak,
        gated=tolerance.gated,
        verdict=verdict,
        why=tolerance.why if verdict == "observed" else "",
    )


def usable(value: float | None) -> TypeGuard[float]:
    """Whether this is a value at all: NaN, infinity, zero, negative and missing are none."""
    return value is not None and math.isfinite(value) and value > 0


def _error(metric: Metric, attempts: Sequence[Measurement]) -> float | None:
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
    return median(relative) if relative else None


def _excuse(metric: Metric, measurement: Measurement) -> str:
    """Why the measurement itself says that this metric could not be had; empty if it does not."""
    codes = {notice.code for notice in measurement.warnings}
    if metric.name in BUFFERED and "buffered" in codes:
        return "not measurable: buffered"
    if metric.name in COUNTED and "metrics-late" in codes:
        return "the server's metrics answered late"
    if metric.name in TTFT and "clock-unsure" in codes:
        return "the clock of a load host is not sure"
    cold = measurement.phase == "decode" and measurement.ttft_warm is False
    return "not warm" if cold and metric.name in TTFT else ""


def _verdict(
    metric: Metric,
    cell: Cell,
    measured: float,
    baseline: float,
    tolerance: Tolerance,
    gate: Gate,
) -> Literal["ok", "worse", "better", "observed"]:
    """A metric too noisy to be gated says nothing within its noise; a fall beyond even that is
    one all the same, at the same chance of error."""
    side = _side(metric, measured, baseline, tolerance.fraction)
    fell = side == "worse" and tolerance.fraction is not None and gate.gates(metric, cell)
    return side if tolerance.gated or fell else "observed"


def _side(
    metric: Metric, measured: float, baseline: float, tolerance: float | None
) -> Literal["ok", "worse", "better"]:
    if tolerance is not None and not beyond(measured, baseline, tolerance):
        return "ok"
    return "worse" if metric.worse(measured, baseline) else "better"
