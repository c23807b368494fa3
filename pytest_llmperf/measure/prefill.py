"""A prefill cell: cold requests for one token, each with a prompt the server has never seen."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pytest_llmperf.measure.asking import Answer, Asker
from pytest_llmperf.measure.events import CellProgress, Invalid, Step
from pytest_llmperf.measure.gauges import Edges, GaugeWatch
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.measure.setup import Setup
from pytest_llmperf.model.capacity import TRIM_ROOM, prefill_tokens
from pytest_llmperf.model.grid import Cell

SAMPLES = 3
ENOUGH_S = 10.0
WARM_UP_TOKENS = 8192
HEAD_TOKENS = 128
"""A template's shared head and one cache block; that much of a cold prompt may be cached."""
HEAD_SHARE = 0.01


@dataclass(frozen=True)
class Sample:
    """One cold request."""

    ttft: float
    prompt_tokens: int | None
    cached_tokens: int | None

    @property
    def tok_s(self) -> float | None:
        """Tokens worked on per second; None where the server does not count the prompt."""
        if not self.prompt_tokens:
            return None
        return (self.prompt_tokens - (self.cached_tokens or 0)) / self.ttft


@dataclass
class Prefilled:
    """What a prefill cell left behind."""

    samples: list[Sample] = field(default_factory=list)
    target: int = 0


class PrefillCell:
    """Measures one prefill cell once."""

    def __init__(self, setup: Setup, memory: Memory, asker: Asker, cell: Cell) -> None:
        self._setup = setup
        self._memory = memory
        self._asker = asker
        self._cell = cell
        self._watch = GaugeWatch(setup.engine)

    async def run(self) -> Prefilled:
        """Measure.

        Raises:
            Invalid: it could not be measured.
            DoesNotFit: the server does not take prompts of this context.
        """
        context, limit = self._cell.context, self._setup.server.max_model_len
        self._report("drain")
        await self._watch.drain(self._setup.timing.drain_s)
        target = prefill_tokens(context, limit)
        if target is not None and target < context:
            self._memory.prompts.aim(context, target)
        if not self._memory.warmed_up:
            await self._warm_up()
        return await self._measure()

    async def _warm_up(self) -> None:
        """One discarded prefill: kernels, graphs, autotuning. 8K, but less where the session's
        first cell is so small that 8K may take a slow server very long."""
        self._report("scout")
        context = min(WARM_UP_TOKENS, 4 * self._cell.context)
        limit = self._setup.server.max_model_len
        if limit is not None and context > limit - TRIM_ROOM:
            context = max(limit - TRIM_ROOM, 0)
        await self._asker.ask_fresh(context, 1)
        self._memory.warmed_up = True

    async def _measure(self) -> Prefilled:
        context = self._cell.context
        found = Prefilled()
        began = time.monotonic()
        while len(found.samples) < SAMPLES and time.monotonic() - began < ENOUGH_S:
            self._report("window", time.monotonic() - began)
            before = await self._watch.scrape()
            prompt, answer = await self._asker.ask_fresh(context, 1)
            after = await self._watch.scrape()
            edges = Edges(before.gauges, after.gauges) if before and after else None
            sample = _sample(answer, edges)
            if _too_much_cached(sample):
                raise Invalid(
                    f"{sample.cached_tokens:,} of {sample.prompt_tokens:,} prompt tokens came"
                    " from the server's cache; a prefill must be cold"
                )
            found.samples.append(sample)
            found.target = prompt.target
            self._memory.shared[context] = prompt
            self._memory.first_token_s[context] = answer.ttft
        return found

    def _report(self, step: Step, elapsed_s: float = 0.0) -> None:
        self._setup.listener(CellProgress(self._cell, step, elapsed_s))


def _sample(answer: Answer, edges: Edges | None) -> Sample:
    """Cached tokens as the answer says, else as the server's prefix-cache counters say."""
    record = answer.record
    cached = record.cached_tokens
    if cached is None and edges is not None and (hits := edges.rose("prefix_hits")) is not None:
        cached = round(hits)
    return Sample(answer.ttft, record.prompt_tokens, cached)


def _too_much_cached(sample: Sample) -> bool:
    cached, prompt = sample.cached_tokens or 0, sample.prompt_tokens or 0
    return cached > HEAD_TOKENS and cached > HEAD_SHARE * prompt
