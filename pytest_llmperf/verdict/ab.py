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
from pytest_llmperf.verdict.gate import NEEDS_BATCHES, Gate, Neighbour, Tolerance
from pytest_llmperf.verdict.judge import fault, judge, with_left_out
from pytest_llmperf.verdict.noise import floor_of, fraction_worse
from pytest_llmperf.verdict.spread import expected_spread

PAIRS, MOST_PAIRS = 2, 5
"""Pairs of a cell that are measured at first, A B B A, so that what drifts steadily meanwhile falls
out of their mean; and those that a difference is judged by."""

FLOOR = 0.5
"""Smallest difference that counts, as a share of the metric's floor: within a session
nothing but the servers differs."""

FALSE_ALARM = 0.01
"""Chance that any cell of a session with two equal servers is called worse."""

PRIOR, PRIOR_DF = 0.5, 4
"""What a log ratio is expected to vary by before pairs show it, in the spread of its metric between
runs, and the degrees of freedom that this and the windows' own errors are worth: a window knows its
error much better, but nothing of how windows differ."""

OTHERS_DF = 40
"""Degrees of freedom that the pairs of other cells are worth at most: their kinds of noise may
differ by more than is expected."""


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
    others: Sequence[Sequence[Pair]] = ()
    """The pairs of the cells measured before."""

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

    def tolerance(
        self,
        metric: Metric,
        cell: Cell,
        error: float | None,
        company: Sequence[Neighbour] = (),
    ) -> Tolerance:
        """How far the tested server may be from the other one: ``q sqrt(v / pairs)``, or the floor.

        v is the variance of one log ratio: how far the pairs lie apart, those of this cell and
        those of the others, moderated by what the windows know of their own errors; q is Student's
        t with the degrees of freedom of all (Student 1908, Biometrika 6; Smyth 2004 as in
        ``spread``). The first two pairs only ask for more: for them the normal quantile will do.
        ``error`` is in those of the windows.
        """
        gated = self.gates(metric, cell)
        why = "" if gated else "not gated by default"
        override = self.override(metric, cell)
        if override is not None:
            return Tolerance(override, gated, why=why)
        windows = [pair.variance(metric) for pair in self.pairs]
        if metric.name in NEEDS_BATCHES and not any(v is not None for v in windows):
            return Tolerance(None, False, why="the window is too short to know its own error")
        known = [v for v in windows if v is not None] if metric.name not in TTFT else []
        scale = _expected_variance(metric, cell)
        pairs, apart = _apart(self.pairs, metric)
        others = [_relative(some, metric) for some in self.others]
        other_df = sum(count - 1 for count, _ in others)
        relative = sum((count - 1) * v for count, v in others) / max(other_df, 1)
        parts = [
            (PRIOR_DF, max(mean(known) if known else 0.0, scale)),
            (min(other_df, OTHERS_DF), relative * scale),
            (max(pairs - 1, 0), apart),
        ]
        df = sum(weight for weight, _ in parts)
        one = sum(weight * v for weight, v in parts) / df
        tail = sidak(FALSE_ALARM, self.comparisons)
        enough = pairs > PAIRS
        q = float(t_quantile(tail, df)) if enough else normal_quantile(tail)
        limit = q * math.sqrt(one / max(pairs, 1))
        chance = float(fraction_worse(metric, limit))
        baseline = mean(self.cells[cell.id].values(metric.name))
        if gated and chance > metric.observed_beyond:
            gated, why = False, f"noise of {chance:.0%} is beyond {metric.observed_beyond:.0%}"
        return Tolerance(max(chance, FLOOR * float(floor_of(metric, baseline))), gated, why=why)


def _expected_variance(metric: Metric, cell: Cell) -> float:
    streams = cell.concurrency if cell.phase == "decode" else 0
    return float((PRIOR * expected_spread(metric, [streams], [False])[0]) ** 2)


def _apart(pairs: Sequence[Pair], metric: Metric) -> tuple[int, float]:
    """Pairs with a ratio, and the variance of these."""
    ratios = [r for pair in pairs if (r := pair.log_ratio(metric)) is not None]
    return len(ratios), variance(ratios) if len(ratios) > 1 else 0.0


def _relative(pairs: Sequence[Pair], metric: Metric) -> tuple[int, float]:
    """The same in the variance to be expected of their cell; one pair where they have no spread."""
    number, apart = _apart(pairs, metric)
    if number < 2:
        return 1, 0.0
    return number, apart / _expected_variance(metric, pairs[0].tested.cell)


def judge_pairs(
    cell: Cell, pairs: Sequence[Pair], gate: PairGate, others: Sequence[Sequence[Pair]] = ()
) -> CellRecord:
    """The verdict on a cell of the tested server against the other one.

    ``others`` are the pairs of the cells measured before: how far they lie apart is noise too.

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
            record = judge_pairs(cell, sound, gate, others)
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
        gate,
        cells={cell.id: stored},
        token_sources={cell.id: frozenset(sources)},
        pairs=pairs,
        others=others,
    )
    record = judge(cell, tested, known)
    return record.model_copy(update={"notes": [*record.notes, *_notes(cell, pairs)]})


def needs_confirmation(record: CellRecord, pairs: Sequence[Pair]) -> bool:
    """Whether to measure further pairs before calling one server the faster."""
    unsure = (Outcome.REGRESSED, Outcome.LIMIT, Outcome.IMPROVED)
    return record.outcome in unsure and len(pairs) < MOST_PAIRS


def _as_baseline(measured: Sequence[Measurement]) -> CellBaseline:
    runs = [f"pair{n}" for n, _ in enumerate(measured, start=1)]
    unfit = measured[0]
    if all(m.status is Status.OVER_CAPACITY for m in measured):
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
