"""States of a measurement in which some metrics are not what they are otherwise. Pure."""

from __future__ import annotations

from pytest_llmperf.model.result import Measurement

BUFFERED, COLD, UNCOUNTED = "buffered", "not warm", "the server's metrics answered late"

UNSURE = "the clock of a load host is not sure"
"""The one that is ours and no fault of the server: it is never a finding."""

UNMEASURABLE = (BUFFERED, UNCOUNTED, UNSURE)
"""States in which there is no value at all, whatever number stands there."""

_LOST: dict[str, tuple[str, ...]] = {
    BUFFERED: ("itl_ms", "ttft_ms", "ttft_p99_ms", "chunk_gap_p99_ms"),
    UNCOUNTED: ("steps_s", "tokens_per_step"),
    UNSURE: ("ttft_ms", "ttft_p99_ms"),
    COLD: ("ttft_ms", "ttft_p99_ms"),
}
"""The metrics of each: what cannot be had of a stream that something on the way collects; what only
the server's own counters tell; what depends on when a host began; what a prompt that was not cached
has to wait for."""


def lost_state(metric: str, measurement: Measurement) -> str:
    """The state that the metric lacks in a measurement; empty if it lacks none.

    A baseline never holds values of two states beside each other, so that one that it had and a
    run has not is a finding.
    """
    codes = {notice.code for notice in measurement.warnings}
    cold = measurement.phase == "decode" and measurement.ttft_warm is False
    states = {
        BUFFERED: "buffered" in codes,
        UNCOUNTED: "metrics-late" in codes,
        UNSURE: "clock-unsure" in codes,
        COLD: cold,
    }
    return next((state for state, there in states.items() if there and metric in _LOST[state]), "")
