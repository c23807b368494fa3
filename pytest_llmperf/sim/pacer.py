"""Runs the scheduler in real time: one task for the whole batch, deadlines that do not drift."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace

from pytest_llmperf.sim.faults import Fault, Faults, Moment
from pytest_llmperf.sim.scheduler import Scheduler, SimRequest, Step
from pytest_llmperf.sim.stream import Live
from pytest_llmperf.sim.truth import TruthFile
from pytest_llmperf.sim.wire import Counters

clock = time.monotonic
# Behind by more than this (a suspended machine), the engine goes on from now instead of rushing.
_LOST_S = 1.0
_EARLY_S = 0.0005


async def _sleep_until(due: float) -> float:
    """Sleep, and return the time. Again if woken early: uvloop's timers start at the time its
    iteration began, which after a large batch is milliseconds ago."""
    while (left := due - (now := clock())) > _EARLY_S:  # noqa: ASYNC110 - no event, the clock
        await asyncio.sleep(left)
    return now


class Pacer:
    """The engine as the server sees it.

    Args:
        scheduler: decides what happens and how long it takes.
        faults: what goes wrong, by the tokens and times seen here.
        error_event: the bytes of an error inside a stream, from its status and message.
        slots_die: running out of KV ends all requests with an error (llama.cpp) instead of
            preempting some.
        truth: gets every request that ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        faults: Faults,
        error_event: Callable[[int, str], bytes],
        *,
        slots_die: bool = False,
        truth: TruthFile | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._faults = faults
        self._error_event = error_event
        self._slots_die = slots_die
        self._truth = truth
        self._lives: dict[str, Live] = {}
        self._work = asyncio.Event()
        self._stall = 0.0
        self._effective = replace(scheduler.stats)
        """Totals of the steps that are over."""
        self._prefill_s = self._decode_s = 0.0
        self._sequence_steps = self._finished = self._longest = 0
        self.started = clock()

    def moment(self, request: int | None = None, made: int = 0) -> Moment:
        """Now, for faults."""
        return Moment(clock() - self.started, self._effective.generation_tokens, request, made)

    def submit(self, live: Live, request: SimRequest) -> None:
        """Take a request that arrived at ``live.submitted``."""
        self._scheduler.submit(request, live.submitted)
        self._lives[request.id] = live
        self._work.set()
        if live.watch:
            self._try(live)

    def gone(self, live: Live) -> None:
        """The client has closed the connection."""
        if live.done:
            return
        if live.zombie:
            # nobody reads, so nothing may pile up
            live.mute()
        else:
            self._drop(live, "gone")

    def counters(self) -> Counters:
        """Gauges as of now, totals as of the last step that is over."""
        stats, past = self._scheduler.stats, self._effective
        return Counters(
            running=stats.running,
            waiting=stats.waiting,
            kv_use=stats.kv_use,
            preemptions=past.preemptions,
            prompt_tokens=past.prompt_tokens,
            generated_tokens=past.generation_tokens,
            prefix_queries=past.prefix_queries,
            prefix_hits=past.prefix_hits,
            drafts=past.drafts,
            draft_tokens=past.draft_tokens,
            accepted=past.accepted_tokens,
            steps=past.steps,
            sequence_steps=self._sequence_steps,
            finished=self._finished,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            longest=self._longest,
        )

    async def run(self) -> None:
        """Step for ever."""
        loop = asyncio.get_running_loop()
        for at in self._faults.times():
            loop.call_later(at, self._server_faults)
        due = clock()
        while True:
            step = self._scheduler.step(due)
            if step is None:
                self._effective = replace(self._scheduler.stats)
                self._work.clear()
                await self._work.wait()
                due = max(due, clock())
                continue
            if step.waiting:
                self._work.clear()
                await self._sleep_or_work(due + step.duration_s)
                due = max(due, min(due + step.duration_s, clock()))
                continue
            self._admit(step, clock())
            due += step.duration_s + self._stall
            self._stall = 0.0
            now = await _sleep_until(due)
            if now - due > _LOST_S:
                due = now
            self._emit(step, now)
            # what this step yielded goes out before the next one is computed
            await asyncio.sleep(0)

    async def _sleep_or_work(self, due: float) -> None:
        alarm = asyncio.get_running_loop().call_later(max(due - clock(), 0.0), self._work.set)
        try:
            await self._work.wait()
        finally:
            alarm.cancel()

    def _admit(self, step: Step, now: float) -> None:
        for admission in step.admitted:
            live = self._lives.get(admission.id)
            if live is not None and not admission.again:
                live.admit(admission.cached_tokens, now)

    def _emit(self, step: Step, now: float) -> None:
        """Hand out what a step that is over has yielded."""
        lives = self._lives
        self._effective = replace(self._scheduler.stats)
        for request_id in step.preempted:
            if (live := lives.get(request_id)) is not None and live.truth is not None:
                live.truth.preempted += 1
        if step.preempted and self._slots_die:
            for live in list(lives.values()):
                if live.admitted is not None:
                    self._fail(live, 500)
            return
        firsts = 0
        for request_id, new, total, first, finish in step.tokens:
            live = lives.get(request_id)
            if live is None:
                continue
            firsts += first
            live.push(new, finish, now)
            if live.watch:
                self._try(live)
            if finish:
                self._finished += 1
                self._longest = max(self._longest, live.job.prompt_tokens + total)
                self._forget(live)
        share = firsts / len(step.tokens) if step.tokens else 1.0
        self._prefill_s += step.duration_s * share
        self._decode_s += step.duration_s * (1 - share)
        self._sequence_steps += len(step.tokens)
        self._server_faults()

    # Faults

    def _server_faults(self) -> None:
        for fault in self._faults.server_due(self.moment()):
            self._happen(fault, None)

    def _try(self, live: Live) -> None:
        for fault in self._faults.due(live.watch, self.moment(live.number, live.made)):
            if not live.done:
                self._happen(fault, live)

    def _happen(self, fault: Fault, live: Live | None) -> None:
        if fault.kind == "crash":
            os._exit(1)
        if fault.kind == "hang":
            time.sleep(1e9)
        if fault.kind == "stall":
            assert fault.value is not None
            self._stall += fault.value
        elif live is not None:
            if fault.kind == "error":
                self._fail(live, 500)
            elif fault.kind == "truncate":
                live.cut()
                self._drop(live, "truncated")
            else:
                live.close("stop")
                self._drop(live, "stop")

    def _fail(self, live: Live, status: int) -> None:
        live.fail(self._error_event(status, ""))
        self._drop(live, "error")

    def _drop(self, live: Live, reason: str) -> None:
        """Take a request out of the engine before its end."""
        self._scheduler.cancel(live.job.id, clock())
        live.end(reason)
        self._forget(live)
        self._work.set()

    def _forget(self, live: Live) -> None:
        self._lives.pop(live.job.id, None)
        truth = live.truth
        if truth is not None and self._truth is not None:
            truth.ended, truth.end, truth.tokens = clock(), live.reason, live.made
            truth.first_token = truth.steps[0][0] if truth.steps else None
            self._truth.add(truth)
            live.truth = None
