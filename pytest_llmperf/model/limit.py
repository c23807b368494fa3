"""An absolute limit on one metric of one cell, and whether it held."""

from __future__ import annotations

from typing import Literal

from pytest_llmperf.model.base import Model
from pytest_llmperf.model.metrics import METRICS, Metric


class LimitCheck(Model):
    """One limit of one cell, in the metric's unit; which side is bad is the metric's."""

    key: str
    """As it was set: ``METRIC`` or ``METRIC@PATTERN``."""
    metric: str
    limit: float
    measured: float | None
    """Of several attempts their median; None where the metric was not observed."""
    margin: float | None = None
    """One-sided 95 % error of ``measured``, as far as its windows know; None where they do not."""
    verdict: Literal["kept", "broken", "watched"]
    """``watched``: broken, and only a warning."""

    def __str__(self) -> str:
        """``TTFT p99 612 ms, limit 500 ms: 22.4 % beyond (error 2.0 %), by ttft_p99_ms``."""
        metric = METRICS[self.metric]
        limit = f"limit {_figure(metric, self.limit)}"
        if self.measured is None:
            return f"{metric.label} was not measured, {limit}, by {self.key}"
        side = "beyond" if metric.worse(self.measured, self.limit) else "inside"
        text = f"{metric.label} {_figure(metric, self.measured)}, {limit}: "
        text += f"{100 * abs(self.measured / self.limit - 1):.1f} % {side}"
        if self.margin is not None:
            text += f" (error {100 * self.margin / self.limit:.1f} %)"
        return f"{text}, by {self.key}"


def _figure(metric: Metric, value: float) -> str:
    told = not metric.unit or metric.unit in metric.label or metric.unit == "1/s"
    return f"{value:,.{metric.digits}f}" + ("" if told else f" {metric.unit}")
