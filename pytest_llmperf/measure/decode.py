"""A decode cell: drain, scout, ramp, window, close."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure.asking import Answer, Asker, PromptTooLong
from pytest_llmperf.measure.events import CellProgress, DoesNotFit, Invalid, Step
from pytest_llmperf.measure.gauges import Edges, GaugeWatch, Scrape, edges
from pytest_llmperf.measure.load import Load, Progress
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.measure.prompts import Prompt
from pytest_llmperf.measure.ramp import Ramp
from pytest_llmperf.measure.requests import no_room
from pytest_llmperf.measure.setup import Setup
from pytest_llmperf.measure.validity import failure
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import ClientHealth

_RAMP_S = 20.0
_EDGE_SCRAPE_S = 1.0
_TICK_S = 0.25


@dataclass(frozen=True)
class Recording:
    """What a decode cell left behind. Times are monotonic seconds."""

    records: list[list[StreamRecord]]
    health: ClientHealth
    prompt_target: int
    t0: float
    t1: float
    scrapes: list[Scrape]
    """Inside the window."""
    edges: Edges | None
    whole: Edges | None
    """From before the load to after the window."""
    scout: StreamRecord
    """The last single request with the prompt; it came to its end, so it knows all counts."""
    warm: bool | None
    """Whether the scouts saw the streams' prompts in the cache; None where nothing says so."""
    drained: bool
    """The server was idle again after the load was cancelled."""


class DecodeCell:
    """Measures one decode cell once."""

    def __init__(self, setup: Setup, memory: Memory, asker: Asker, cell: Cell) -> None:
        self._setup = setup
        self._timing = setup.timing
        self._memory = memory
        self._asker = asker
        self._cell = cell
        self._watch = GaugeWatch(setup.engine)
        self._rate = _Rate()
        self._warm: bool | None = None

    async def run(self) -> Recording:
        """Measure.

        Raises:
            Invalid: it could not be measured.
            DoesNotFit: the server does not hold it.
        """
        self._report("drain", 0.0, self._timing.drain_s)
        await self._watch.drain(self._timing.drain_s)
        for attempt in (1, 2):
            try:
                prompts, scout = await self._scout()
            except PromptTooLong as error:
                refusal: str | None = str(error)
            else:
                refusal = await self._warm_up(prompts, scout)
                if refusal is None:
                    recording = await self._measure(prompts, scout)
                    refusal = _refusal(recording.records)
            if refusal is None:
                return recording
            shortened = attempt == 1 and self._asker.shorten(
                self._cell.context, refusal, self._setup.workload.max_tokens
            )
            if not shortened:
                break
            self._memory.shared.pop(self._cell.context, None)
            self._memory.distinct.pop(self._cell.context, None)
        reason = f"the server has no room for it: {refusal}"
        raise DoesNotFit(self._setup.over_capacity(self._cell, reason))

    # Scout

    async def _scout(self) -> tuple[list[Prompt], Answer]:
        """The streams' prompts, in the server's cache, and the answer to a warm request."""
        self._report("scout", 0.0)
        context, streams = self._cell.context, self._cell.concurrency
        prompt = self._memory.shared.get(context)
        if prompt is None:
            prompt, answer = await self._asker.ask_fresh(context, self._setup.workload.max_tokens)
            self._memory.shared[context] = prompt
            self._memory.first_token_s.setdefault(context, answer.ttft)
        answer = await self._asker.ask(prompt)
        self._warm = _all_warm([answer])
        prompts = [prompt] * streams
        if self._setup.workload.prompts == "distinct" and context:
            known = self._memory.distinct.setdefault(context, [prompt])
            while len(known) < streams:
                known.append(self._memory.prompts.make(context))
            prompts = known[:streams]
            await self._warm_each(prompts)
        elif streams > 1 and self._warm is not None and not self._memory.one_cache:
            # the cache may be one per slot, rank or replica; only the first such cell can tell, as
            # after it several of them have had a prompt
            at_once = await self._warm_each(prompts)
            if self._memory.one_cache is None:
                self._memory.one_cache = at_once
        return prompts, answer

    async def _warm_each(self, prompts: list[Prompt]) -> bool:
        """Send every stream's prompt unmeasured, and again if they were not all cached. True when
        the first round found them all cached already."""
        at_once = self._warm = _all_warm(await self._asker.ask_all(prompts))
        if at_once is False:
            self._warm = _all_warm(await self._asker.ask_all(prompts))
        return at_once is True

    # Ramp, window, close

    async def _warm_up(self, prompts: list[Prompt], scout: Answer) -> str | None:
        """Before the first decode cell of a server start: a load like this cell's, unmeasured.

        What a first load meets (clocks that rise, memory and kernels that are used for the first
        time) is no cell's; and a cell run alone is measured as warm as within its matrix. Returns
        the server's words if it has no room for a request.
        """
        seconds = min(self._timing.warm_load_s, self._timing.duration_s)
        if self._memory.loaded or not seconds:
            return None
        limit_s = self._ramp_limit(scout.ttft)
        load = self._make_load(prompts, limit_s + seconds)
        try:
            await self._settle(load, limit_s, "scout")
            if not load.progress().failed:
                now = time.monotonic()
                await load.run_window(now, now + seconds, 0.0)
        finally:
            records, health = await load.finish()
            await self._abort(records)
        self._setup.crew.learn(self._cell.concurrency, health)
        await self._watch.drain(self._timing.drain_s)
        refusal = _refusal(records)
        if refusal is None and (words := failure(records)):
            raise Invalid(words)
        self._memory.loaded = refusal is None
        return refusal

    async def _measure(self, prompts: list[Prompt], scout: Answer) -> Recording:
        timing = self._timing
        limit_s = self._ramp_limit(scout.ttft)
        load = self._make_load(prompts, limit_s + timing.duration_s)
        before = await self._watch.scrape()
        try:
            await self._settle(load, limit_s, "ramp")
            t0 = time.monotonic()
            t1 = t0 + timing.duration_s
            first, last = await self._run_window(load, t0, t1)
        finally:
            self._report("close", 0.0)
            records, health = await load.finish()
            await self._abort(records)
        self._setup.crew.learn(self._cell.concurrency, health)
        inside = [s for s in self._watch.scrapes if t0 <= s.asked and s.gauges.at <= t1 + 0.5]
        return Recording(
            records=records,
            health=health,
            prompt_target=prompts[0].target,
            t0=t0,
            t1=t1,
            scrapes=inside,
            edges=edges(first, last, timing.duration_s),
            whole=Edges(before.gauges, last.gauges) if before and last else None,
            scout=scout.record,
            warm=self._warm,
            drained=await self._close(),
        )

    def _make_load(self, prompts: list[Prompt], seconds: float) -> Load:
        """A stream for each prompt, that a first token reaches within these seconds and a stall."""
        form = self._memory.form
        body = {
            id(prompt): json.dumps(form.body(prompt, self._setup.workload.max_tokens)).encode()
            for prompt in prompts
        }
        bodies = [body[id(prompt)] for prompt in prompts]
        return self._setup.make_load(form.path, bodies, seconds + self._timing.stall_s)

    async def _settle(self, load: Load, limit_s: float, step: Step) -> None:
        """Start the streams, and return once all of them run."""
        await load.open()
        async with self._polling(0.2):
            began = time.monotonic()
            await load.start()
            await Ramp(load, self._watch, self._memory, self._cell.concurrency).settle(
                self._timing.settle_s,
                limit_s,
                lambda reason: self._setup.over_capacity(self._cell, reason),
                lambda progress: self._look(step, began, limit_s, progress),
            )

    async def _run_window(
        self, load: Load, t0: float, t1: float
    ) -> tuple[Scrape | None, Scrape | None]:
        """Run it; the scrapes at its edges."""
        duration = t1 - t0
        first = asyncio.create_task(self._watch.scrape())
        last = asyncio.create_task(self._watch.scrape_at(t1))
        ticking = asyncio.create_task(self._tick(load, t0, duration))
        try:
            async with self._polling(min(max(duration / 8, 0.5), 2.0), after_s=0.5):
                await load.run_window(t0, t1, self._timing.stall_s)
            if not load.progress().failed:
                # the load goes on meanwhile, so that a slow answer still describes it
                await asyncio.wait([first, last], timeout=_EDGE_SCRAPE_S)
            return tuple(t.result() if t.done() else None for t in (first, last))  # type: ignore[return-value]
        finally:
            for task in (first, last, ticking):
                task.cancel()
            await asyncio.gather(first, last, ticking, return_exceptions=True)

    async def _abort(self, records: list[list[StreamRecord]]) -> None:
        """End the cancelled requests on a server that would take its time to notice."""
        ids = [r.id for stream in records for r in stream if r.end == "cancelled"]
        await asyncio.gather(*(self._setup.engine.abort(name) for name in ids))

    async def _close(self) -> bool:
        try:
            await self._watch.drain(self._timing.drain_s)
        except Invalid:
            return False
        return True

    def _ramp_limit(self, warm_s: float) -> float:
        """Seconds until all streams must run: every prompt's rest may be worked on in turn."""
        settle = 3 * self._timing.settle_s
        if self._timing.first_token_s is not None:
            return settle + self._timing.first_token_s
        return settle + _RAMP_S + 1.5 * self._cell.concurrency * warm_s

    @contextlib.asynccontextmanager
    async def _polling(self, interval_s: float, after_s: float = 0.0) -> AsyncIterator[None]:
        async def poll() -> None:
            await asyncio.sleep(after_s)
            await self._watch.poll(interval_s)

        task = asyncio.create_task(poll())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # Telling

    async def _tick(self, load: Load, t0: float, duration: float) -> None:
        while True:
            self._look("window", t0, duration, load.progress())
            await asyncio.sleep(_TICK_S)

    def _look(self, step: Step, began: float, limit_s: float, progress: Progress) -> None:
        now = time.monotonic()
        if self._rate.due(now):
            self._rate.add(now, progress.tokens)
            self._report(step, now - began, limit_s - (now - began), progress)

    def _report(
        self,
        step: Step,
        elapsed_s: float,
        left_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._setup.listener(
            CellProgress(
                cell=self._cell,
                step=step,
                elapsed_s=elapsed_s,
                left_s=None if left_s is None else max(left_s, 0.0),
                tok_s=self._rate.value if progress else None,
                active=progress.decoding if progress else None,
                waiting=seen.waiting if progress and (seen := self._watch.latest) else None,
                tokens=progress.tokens if progress else 0,
            )
        )


class _Rate:
    """Tokens per second between two looks, for people."""

    def __init__(self) -> None:
        self._at = 0.0
        self._tokens = 0
        self.value: float | None = None

    def due(self, now: float) -> bool:
        return now - self._at >= _TICK_S * 0.9

    def add(self, now: float, tokens: int) -> None:
        if self._at and tokens >= self._tokens:
            self.value = (tokens - self._tokens) / (now - self._at)
        self._at, self._tokens = now, tokens


def _all_warm(answers: list[Answer]) -> bool | None:
    told = [warm for answer in answers if (warm := answer.warm) is not None]
    return all(told) if told else None


def _refusal(records: list[list[StreamRecord]]) -> str | None:
    """The words with which the server said that it has no room for a request."""
    for stream in records:
        for record in stream:
            if record.end == "failed" and no_room(record.status, record.error):
                return record.error
    return None
