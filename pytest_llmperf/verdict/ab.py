"""Two servers measured in turn: the pairs of a cell, without a stored baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, variance

from pytest_llmperf.baseline.schema import STORED, CellBaseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS, Metric, metrics_of
from pytest_llmperf.model.result import CellRecord, Measurement, Outcome, Status
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.stats.distributions import normal_quantile, sidak, t_quantile
from pytest_llmperf.verdict import words
from pytest_llmperf.verdict.compare import TTFT, usable
from pytest_llmperf.verdict.gate import FALSE_ALARM, NEEDS_BATCHES, Gate, Tolerance
from pytest_llmperf.verdict.judge import fault, judge, with_left_out
from pytest_llmperf.verdict.noise import floor_of, fraction_worse

PAIRS = 2
"""Pairs of a cell, measured A B B A: what drifts steadily meanwhile falls out of their mean."""

WINDOWS_DF = 4
"""Degrees of freedom that the windows' own errors are worth beside the spread of the pairs. They
are known much better, but not of the noise between windows. In simulation (26 comparisons, two
pairs and two more) the chance of a false failure stays below 1 % while pairs lie up to 1.4 times as
far apart as the windows explain, and is 4 % at 2.2 times; more would trust the windows more."""


@dataclass(frozen=True)
class Pair:
    """One cell, measured at both servers right after each other."""

    reference: Measurement
    tested: Measurement

    def log_ratio(self, metric: Metric) -> float | None:
        """ln(tested / reference); None where either has no value."""
        a, b = self.reference.value(metric.name), self.tested.value(metric.name)
        return math.log(b / a) if usable(a) and usable(b) else None

    def variance(self, metric: Metric) -> float | None:
        """Of the log ratio, by the two windows' own errors; None where one does not know its."""
        total = 0.0
        for measurement in (self.reference, self.tested):
            error = measurement.std_errors.get(metric.name)
            value = measurement.value(metric.name)
            if error is None or not math.isfinite(error) or error < 0 or not usable(value):
                return None
            total += (error / value) ** 2
        return total


@dataclass(frozen=True)
class PairGate(Gate):
    """A gate whose baseline is the other server, and whose noise is that of the pairs.

    What differs between two starts of one build cannot be seen within a session: it is in the
    floors only.
    """

    pairs: Sequence[Pair] = ()

    @classmethod
    def of(cls, reference: str, grid: Iterable[Cell], settings: Settings) -> PairGate:
        """The gate of a run, still without the pairs of a cell.

        Args:
            reference: what the other server is called.
            grid: the declared grid.
            settings: the run's.
        """
        gate = cls(
            reference, {}, 0, {}, settings.gate, settings.tolerances,
            fail_on_improvement=settings.fail_on_improvement,
        )  # fmt: skip
        count = sum(gate.gates(m, cell) for cell in grid for m in metrics_of(cell.phase))
        return replace(gate, comparisons=count)

    def name_reference(self, number: int) -> str:
        return words.pairs(self.profile, number)

    def tolerance(self, metric: Metric, cell: Cell, error: float | None) -> Tolerance:
        """How far the tested server may be from the other one: ``q sqrt(v / pairs)``, or the floor.

        v is the variance of one log ratio: how far the pairs lie apart, moderated by the errors of
        the windows (batch means) where those are known, and q Student's t with the degrees of
        freedom of both (Student 1908, Biometrika 6; Smyth 2004 as in ``noise``). The first two
        pairs, too few for that, only ask for more: the normal q of the larger variance. ``error``
        is in those of the windows.
        """
        gated = self.gates(metric, cell)
        why = "" if gated else "not gated by default"
        override = self.overrides.get(f"{metric.name}@{cell.id}", self.overrides.get(metric.name))
        if override is not None:
            return Tolerance(override, gated, why=why)
        windows = [pair.variance(metric) for pair in self.pairs]
        if metric.name in NEEDS_BATCHES and None in windows:
            return Tolerance(None, False, why="the window is too short to know its own error")
        known = [v for v in windows if v is not None] if metric.name not in TTFT else []
        ratios = [r for pair in self.pairs if (r := pair.log_ratio(metric)) is not None]
        pairs, tail = len(ratios), sidak(FALSE_ALARM, self.comparisons)
        apart = variance(ratios) if pairs > 1 else 0.0
        own, weight = (mean(known), WINDOWS_DF) if known else (0.0, 0)
        if pairs <= PAIRS:
            q, one = normal_quantile(tail), max(own, apart)
        else:
            df = weight + pairs - 1
            q, one = float(t_quantile(tail, df)), (weight * own + (pairs - 1) * apart) / df
        chance = float(fraction_worse(metric, q * math.sqrt(one / max(pairs, 1))))
        baseline = mean(self.cells[cell.id].values(metric.name))
        if gated and chance > metric.observed_beyond:
            gated, why = False, f"noise of {chance:.0%} is beyond {metric.observed_beyond:.0%}"
        return Tolerance(max(chance, float(floor_of(metric, baseline))), gated, why=why)


def judge_pairs(cell: Cell, pairs: Sequence[Pair], gate: PairGate) -> CellRecord:
    """The verdict on a cell of the tested server against the other one.

    The outcomes are those of ``judge``; a pair with an invalid side makes the cell invalid, unless
    more are left than a breach needs, and are worse.
    """
    tested = [pair.tested for pair in pairs]
    faults = [
        f"{name}pair {number}: {why}"
        for number, pair in enumerate(pairs, start=1)
        for name, measurement in ((f"{gate.profile}, ", pair.reference), ("", pair.tested))
        if (why := fault(measurement))
    ]
    if faults:
        sound = [pair for pair in pairs if not fault(pair.reference) and not fault(pair.tested)]
        if len(sound) > PAIRS:
            record = judge_pairs(cell, sound, gate)
            if record.outcome is Outcome.REGRESSED:  # one that failed makes it no better
                return with_left_out(record, tested, f"left out: {'; '.join(faults)}")
        return CellRecord(
            cell=cell.id,
            outcome=Outcome.INVALID,
            message=f"{cell.id} is invalid: {faults[0]}",
            measurement=tested[-1],
            attempts=tested,
        )
    stored = _as_baseline([pair.reference for pair in pairs])
    sources = {source for pair in pairs if (source := pair.reference.token_source)}
    known = replace(
        gate, cells={cell.id: stored}, token_sources={cell.id: frozenset(sources)}, pairs=pairs
    )
    record = judge(cell, tested, known)
    return record.model_copy(update={"notes": [*record.notes, *_notes(cell, pairs)]})


def needs_confirmation(record: CellRecord, pairs: Sequence[Pair]) -> bool:
    """Whether to measure as many pairs again before calling one server the faster."""
    return record.outcome in (Outcome.REGRESSED, Outcome.IMPROVED) and len(pairs) == PAIRS


def _as_baseline(measured: Sequence[Measurement]) -> CellBaseline:
    runs = [f"pair{n}" for n, _ in enumerate(measured, start=1)]
    unfit = next((m for m in measured if m.status is Status.OVER_CAPACITY), None)
    if unfit is not None:
        known = unfit.capacity.model_dump(include={"needs", "budget"}) if unfit.capacity else {}
        return CellBaseline.model_validate({"runs": runs, "over_capacity": known})
    phase = measured[0].phase
    lists = {
        name: [value if usable(value := getattr(m, name)) else None for m in measured]
        for name in STORED
        if name not in METRICS or phase in METRICS[name].phases
    }
    found = {name: values for name, values in lists.items() if any(values)}
    return CellBaseline.model_validate({"runs": runs, **found})


def _notes(cell: Cell, pairs: Sequence[Pair]) -> list[str]:
    name = "prefill_tok_s" if cell.phase == "prefill" else "total_tok_s"
    values = [(p.reference.value(name), p.tested.value(name)) for p in pairs]
    texts = [f"{a:,.1f} -> {b:,.1f}" for a, b in values if usable(a) and usable(b)]
    return [f"pairs, {METRICS[name].label}: {'; '.join(texts)}"] if texts else []
