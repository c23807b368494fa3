"""What a client that measures right must see, computed without a clock.

Closed-loop streams drive the scheduler in virtual time as the measuring client drives a server:
a scout, C requests at once, restarts at once, a window a settle time after all have a token.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.sim.calibrate import SETTLE_S, calibrate
from pytest_llmperf.sim.profile import Correction, EngineModel, ProfileTables
from pytest_llmperf.sim.scheduler import Scheduler, SimRequest, Step, Tokens


@dataclass(frozen=True)
class Expected:
    """A cell's values by the definitions of the method guide. None: it has none."""

    cell: Cell
    ttft_ms: float
    prefill_tok_s: float | None = None
    total_tok_s: float | None = None
    itl_ms: float | None = None
    per_request_tok_s: float | None = None
    steps_s: float | None = None
    tokens_per_step: float | None = None
    completed: int | None = None
    """Requests that ended within the window."""
    preemptions: int = 0
    """In the whole cell."""


@dataclass(frozen=True)
class Residual:
    """One figure of a report beside the model's. ``off`` is a fraction of the report."""

    cell: Cell
    metric: str
    report: float
    expected: float

    @property
    def off(self) -> float:
        return self.expected / self.report - 1


@dataclass(frozen=True)
class Fit:
    """How near an engine comes to its profile."""

    residuals: tuple[Residual, ...]
    corrections: tuple[Correction, ...]
    over_capacity: frozenset[tuple[int, int]]
    """(context, concurrency) that do not fit the engine, of all the profile has."""


@dataclass(slots=True)
class _Stream:
    """A request's arrivals: times and tokens so far."""

    sent: float
    times: list[float] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    ended: bool = False


def expected(
    engine: EngineModel,
    cell: Cell,
    duration_s: float = 30.0,
    *,
    max_tokens: int = 4096,
    settle_s: float = SETTLE_S,
    shared: bool = True,
    seed: int | None = None,
) -> Expected:
    """Measure a cell in virtual time.

    Args:
        engine: with the run's `Variation` applied.
        cell: what to measure.
        duration_s: the window.
        max_tokens: output of each request.
        settle_s: from the last stream's first token to the window.
        shared: one prompt for all streams, or one for each.
        seed: of one run with random acceptance; None gives the mean.

    Raises:
        TooLong: when a request exceeds max_model_len.
    """
    scheduler = Scheduler(engine, seed or 0, average=seed is None)
    if cell.phase == "prefill":
        context = min(cell.context, engine.max_model_len - 65)
        first, _ = _scout(scheduler, _request(engine, "scout", context, 1, 0), 0.0)
        return Expected(cell, first * 1000, prefill_tok_s=context / first)
    return _Decode(scheduler, cell, max_tokens, shared).measure(duration_s, settle_s)


def residuals(tables: ProfileTables) -> Fit:
    """Calibrate an engine and hold every figure of its profile against it."""
    engine = calibrate(tables)
    found = []
    for context, prefill in sorted(tables.prefill.items()):
        cell = Cell("prefill", context)
        value = expected(engine, cell)
        assert value.prefill_tok_s is not None
        found += [
            Residual(cell, "prefill_tok_s", prefill.tok_s, value.prefill_tok_s),
            Residual(cell, "ttft_ms", prefill.ttft_ms, value.ttft_ms),
        ]
    for (context, streams), row in sorted(tables.decode.items()):
        cell = Cell("decode", context, streams)
        value = expected(engine, cell, tables.duration_s, max_tokens=tables.max_tokens)
        assert value.total_tok_s is not None
        assert value.itl_ms is not None
        found += [
            Residual(cell, "total_tok_s", row.total_tok_s, value.total_tok_s),
            Residual(cell, "itl_ms", row.itl_ms, value.itl_ms),
            Residual(cell, "ttft_ms", row.ttft_ms, value.ttft_ms),
        ]
    over = {
        cell
        for cell in {*tables.decode, *tables.over_capacity}
        if tables.needs(*cell) > engine.kv_tokens
    }
    return Fit(tuple(found), engine.corrections, frozenset(over))


def _request(engine: EngineModel, name: str, tokens: int, max_tokens: int, text: int) -> SimRequest:
    """A request for one of the cell's prompts; ``text`` tells them apart."""
    blocks = tokens // engine.block_size
    return SimRequest(name, tokens, range(text << 32, (text << 32) + blocks), max_tokens)


def _steps(scheduler: Scheduler, now: float) -> Iterator[tuple[float, Step]]:
    """Run the scheduler until it is idle; each step with the time it ends."""
    while (step := scheduler.step(now)) is not None:
        now += step.duration_s
        yield now, step


def _scout(scheduler: Scheduler, request: SimRequest, now: float) -> tuple[float, float]:
    """TTFT of a lone request that asks for one token, and when it is over."""
    scheduler.submit(request, now)
    end = now
    for end, step in _steps(scheduler, now):  # noqa: B007
        if step.tokens:
            break
    return end - now, end


class _Decode:
    """One decode cell under way."""

    def __init__(self, scheduler: Scheduler, cell: Cell, max_tokens: int, shared: bool) -> None:
        self.scheduler, self.cell, self.max_tokens = scheduler, cell, max_tokens
        self.texts = [0 if shared else i for i in range(cell.concurrency)]
        self.requests: list[list[_Stream]] = [[] for _ in self.texts]
        self.current: dict[str, tuple[int, _Stream]] = {}

    def measure(self, duration_s: float, settle_s: float) -> Expected:
        scheduler = self.scheduler
        start = 0.0
        for text in sorted(set(self.texts)):
            scout = _request(scheduler.engine, f"scout-{text}", self.cell.context, 1, text)
            start = _scout(scheduler, scout, start)[1]
        for i in range(self.cell.concurrency):
            self._send(i, start)
        opens = closes = math.inf
        counters = []
        open_ended: set[str] | None = None
        """Requests that the window's right edge found decoding: they run to their next token."""
        for now, step in _steps(scheduler, start):
            for tokens in step.tokens:
                self._arrive(tokens, now, restart=now < closes)
            if opens == math.inf and all(self._has_token(done) for done in self.requests):
                opens = now + settle_s
                closes = opens + duration_s
            counters.append((now, scheduler.stats.drafts, scheduler.stats.generation_tokens))
            if now >= closes:
                if open_ended is None:
                    open_ended = {key for key, (_, s) in self.current.items() if s.times}
                open_ended -= {tokens.id for tokens in step.tokens}
                if not open_ended:
                    break
        return self._reduce(opens, closes, counters)

    def _send(self, i: int, now: float) -> None:
        done = self.requests[i]
        request = _request(
            self.scheduler.engine,
            f"{i}.{len(done)}",
            self.cell.context,
            self.max_tokens,
            self.texts[i],
        )
        stream = _Stream(now)
        done.append(stream)
        self.current[request.id] = (i, stream)
        self.scheduler.submit(request, now)

    def _arrive(self, tokens: Tokens, now: float, restart: bool) -> None:
        i, stream = self.current[tokens.id]
        stream.times.append(now)
        stream.totals.append(tokens.total)
        if tokens.finish:
            stream.ended = True
            del self.current[tokens.id]
            if restart:
                self._send(i, now)

    @staticmethod
    def _has_token(done: list[_Stream]) -> bool:
        return len(done) > 1 or bool(done[0].times)

    def _reduce(
        self, opens: float, closes: float, counters: list[tuple[float, int, int]]
    ) -> Expected:
        seconds = closes - opens
        streams = [stream for done in self.requests for stream in done]
        ttfts = [s.times[0] - s.sent for s in streams if s.times]
        inside = [r for s in streams if (r := _inside(s, opens, closes)) is not None]
        rates = [r for r in inside if r[0] >= 10 and r[1] >= 1.0] or inside
        first, last = (bisect_left(counters, (edge, 0, 0)) for edge in (opens, closes))
        drafts, made = (counters[last][k] - counters[first][k] for k in (1, 2))
        return Expected(
            self.cell,
            ttft_ms=1000 * median(ttfts),
            total_tok_s=sum(_curve(s, closes) - _curve(s, opens) for s in streams) / seconds,
            itl_ms=1000 * median([s / t for _, s, t in rates]) if rates else None,
            per_request_tok_s=median([t / s for _, s, t in rates]) if rates else None,
            steps_s=drafts / seconds if drafts else None,
            tokens_per_step=made / drafts if drafts else None,
            completed=sum(1 for s in streams if s.ended and opens <= s.times[-1] < closes),
            preemptions=self.scheduler.stats.preemptions,
        )


def _curve(stream: _Stream, at: float) -> float:
    """Tokens of a request by a moment: linear between arrivals, the first chunk a jump."""
    times, totals = stream.times, stream.totals
    if not times or at < times[0]:
        return 0.0
    if at >= times[-1]:
        return totals[-1]
    i = bisect_right(times, at)
    share = (at - times[i - 1]) / (times[i] - times[i - 1])
    return totals[i - 1] + (totals[i] - totals[i - 1]) * share


def _inside(stream: _Stream, opens: float, closes: float) -> tuple[int, float, int] | None:
    """Arrivals of a request in the window, the seconds they span, the tokens after the first."""
    low, high = bisect_left(stream.times, opens), bisect_left(stream.times, closes)
    if high - low < 2 or stream.totals[high - 1] == stream.totals[low]:
        return None
    return (
        high - low,
        stream.times[high - 1] - stream.times[low],
        stream.totals[high - 1] - stream.totals[low],
    )
