"""Absolute limits, judged beside the baseline and without any. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.keys import applies, choose_key
from pytest_llmperf.model.limit import LimitCheck
from pytest_llmperf.model.metrics import Metric, metrics_of
from pytest_llmperf.model.result import CellRecord, Measurement, Notice, Outcome, Status
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.model.state import UNSURE, lost_state
from pytest_llmperf.stats.distributions import normal_quantile
from pytest_llmperf.verdict import words
from pytest_llmperf.verdict.compare import usable
from pytest_llmperf.verdict.noise import median_variance

CHANCE = 0.05
"""That a value which is on its limit, no further, is called beyond it by one window."""

_GIVES_WAY = (Outcome.PASS, Outcome.IMPROVED, Outcome.NEW, Outcome.MEASURED, Outcome.UNGATED)
"""Outcomes that a broken limit takes the place of; a worse one keeps its word."""


@dataclass(frozen=True)
class Limits:
    """What values may not go beyond, whatever the baseline says."""

    bounds: Mapping[str, float] = field(default_factory=dict)
    """Key (``model.keys``) -> limit in the metric's unit."""
    watched: tuple[str, ...] = ()
    """Keys of what only warns."""

    @classmethod
    def build(cls, baseline: Baseline | None, settings: Settings) -> Limits:
        """Those of the profile, if one applies, and of the run, which go before."""
        bounds = {**(baseline.limits if baseline else {}), **settings.limits}
        watched = [key for key in (baseline.gate if baseline else ()) if key not in settings.gate]
        return cls(bounds, tuple(watched))

    def find_idle(self, cells: Iterable[Cell]) -> list[Notice]:
        """The limits that none of the cells has: a misspelt one would hold for ever."""
        known = list(cells)
        return [
            Notice(code="limit-unused", text=f"no cell has the limit {key}; is it spelt right?")
            for key in self.bounds
            if not any(applies(key, key.partition("@")[0], cell) for cell in known)
        ]


def check_limits(record: CellRecord, limits: Limits) -> CellRecord:
    """A judged cell with its limits judged too.

    A value breaks its limit when it is beyond it by more than the one-sided 95 % error of its
    windows; one that was not observed cannot be shown to keep it. A cell that is not measured
    (invalid, over capacity) has nothing to judge.
    """
    sound = [attempt for attempt in record.attempts if attempt.status is Status.VALID]
    cell = Cell.parse(record.cell)
    checks = [
        _check(metric, key, limits.bounds[key], sound, _is_watched(limits, metric, cell))
        for metric in (metrics_of(cell.phase) if sound else ())
        if (key := choose_key(limits.bounds, metric.name, cell)) is not None
    ]
    if not checks:
        return record
    record = record.model_copy(update={"limits": checks})
    broken = [check for check in checks if check.verdict == "broken"]
    if not broken:
        return record
    text = words.broken_limits(record.cell, broken, sound)
    if record.outcome in _GIVES_WAY:
        return record.model_copy(update={"outcome": Outcome.LIMIT, "message": text})
    return record.model_copy(update={"message": f"{record.message}\n{text}"})


def _check(
    metric: Metric, key: str, limit: float, attempts: Sequence[Measurement], watched: bool
) -> LimitCheck:
    # a clock that is not sure is ours, and breaks no limit of the server's
    attempts = [m for m in attempts if lost_state(metric.name, m) != UNSURE] or attempts
    unsure = all(lost_state(metric.name, m) == UNSURE for m in attempts)
    values = [v for attempt in attempts if usable(v := attempt.value(metric.name))]
    errors = [
        error
        for attempt in attempts
        if (error := attempt.std_errors.get(metric.name)) is not None and math.isfinite(error)
    ]
    measured = median(values) if values else None
    margin = None
    if errors and values:
        spread = math.sqrt(float(median_variance(len(values))))
        margin = normal_quantile(CHANCE) * median(errors) * spread
    beyond = not unsure and (
        measured is None
        or (metric.worse(measured, limit) and abs(measured - limit) > (margin or 0.0))
    )
    return LimitCheck(
        key=key,
        metric=metric.name,
        limit=limit,
        measured=measured,
        margin=margin,
        verdict="kept" if not beyond else "watched" if watched else "broken",
    )


def _is_watched(limits: Limits, metric: Metric, cell: Cell) -> bool:
    return any(applies(key, metric.name, cell) for key in limits.watched)
