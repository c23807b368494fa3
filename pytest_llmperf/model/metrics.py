"""The metrics that are compared: unit, direction, gate, floors. One table, pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_llmperf.model.grid import Phase


@dataclass(frozen=True)
class Metric:
    """How one measured value is named, shown and judged.

    Tolerances are fractions (0.03 is 3 %) unless named otherwise.
    """

    name: str
    """Field of ``Measurement`` and key in baselines; ends in its unit."""
    label: str
    unit: str
    better: Literal["higher", "lower"]
    phases: tuple[Phase, ...]
    gated: tuple[Phase, ...]
    """Phases in which it is judged by default; elsewhere it is reported, and gated by option."""
    floor: float
    """No change smaller than this is ever called one."""
    floor_abs: float = 0.0
    """The same in the metric's own unit; the wider of the two holds."""
    spread: float = 0.015
    """Standard deviation between runs to be expected before any were repeated; at one and two
    streams twice that. What runs show of it overrules it: ``verdict.spread``."""
    by_text: bool = False
    """Whether it moves with the text under speculative decoding, as tokens per step do."""
    observed_beyond: float = 0.30
    """Noise above this: the metric is shown, not judged."""
    digits: int = 1
    """Digits after the decimal point, for people."""

    def worse(self, measured: float, baseline: float) -> bool:
        """Whether ``measured`` lies on the bad side of ``baseline``, by however little."""
        return measured < baseline if self.better == "higher" else measured > baseline


_BOTH: tuple[Phase, ...] = ("prefill", "decode")
_DECODE: tuple[Phase, ...] = ("decode",)
_PREFILL: tuple[Phase, ...] = ("prefill",)
_NONE: tuple[Phase, ...] = ()

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("prefill_tok_s", "prefill tok/s", "tok/s", "higher", _PREFILL, _PREFILL, 0.04),
        Metric("total_tok_s", "total tok/s", "tok/s", "higher", _DECODE, _DECODE, 0.03,
               by_text=True),
        Metric("itl_ms", "ITL", "ms", "lower", _DECODE, _DECODE, 0.04, 0.05, by_text=True,
               digits=2),
        Metric("ttft_ms", "TTFT", "ms", "lower", _BOTH, _DECODE, 0.15, 20.0, spread=0.08,
               observed_beyond=0.75, digits=0),
        Metric("steps_s", "steps/s", "1/s", "higher", _DECODE, _DECODE, 0.03, digits=2),
        Metric("tokens_per_step", "tokens per step", "", "higher", _DECODE, _NONE, 0.05,
               by_text=True, digits=3),
        Metric("per_request_tok_s", "per-request tok/s", "tok/s", "higher", _DECODE, _NONE, 0.05,
               by_text=True),
        Metric("ttft_p99_ms", "TTFT p99", "ms", "lower", _DECODE, _NONE, 0.30, 50.0, spread=0.15,
               observed_beyond=1.0, digits=0),
        Metric("chunk_gap_p99_ms", "chunk gap p99", "ms", "lower", _DECODE, _NONE, 0.30, 5.0,
               spread=0.15, observed_beyond=1.0, digits=1),
    )
}  # fmt: skip

HEADLINE: dict[Phase, str] = {"prefill": "prefill_tok_s", "decode": "total_tok_s"}
"""The speed of a cell: what no valid measurement of its phase lacks."""

SPEEDS: dict[Phase, tuple[str, ...]] = {
    "prefill": ("prefill_tok_s",),
    "decode": ("steps_s", "total_tok_s"),
}
"""What can vouch for the speed of a cell, the steadiest first."""


def metrics_of(phase: Phase) -> list[Metric]:
    """The metrics a cell of this phase can have, in table order."""
    return [m for m in METRICS.values() if phase in m.phases]
