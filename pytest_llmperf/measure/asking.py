"""Single unmeasured or prefill requests: scouts, probes, warm-ups, and prompts that fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.measure.events import DoesNotFit, Invalid
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.measure.prompts import ContextTooShort, Prompt
from pytest_llmperf.measure.requests import named_limit, no_room
from pytest_llmperf.model.result import Capacity
from pytest_llmperf.model.settings import Connection, Timing

OVERLAP_TOKENS = 16
"""Requests that warm the slots of a server must be there at the same time, or one slot takes them
all in turn."""
LEAST_SHARE = 0.98
"""A prompt shorter than this share of its context is not a prompt of that context."""
WARM_SHARE = 0.9
BLOCK_TOKENS = 128
"""The largest usual block of a prefix cache; what is beyond a prompt's last full block is worked on
every time."""


def is_warm(cached: float | None, prompt: int | None) -> bool | None:
    """Whether a prompt was in the server's cache, but for a tenth or one block (which is less than
    half of any prompt that has a full block); None where the server does not say."""
    if cached is None or not prompt:
        return None
    return cached >= WARM_SHARE * prompt or prompt - cached <= min(BLOCK_TOKENS, prompt / 2)


class PromptTooLong(Exception):
    """The server has no room for a prompt; the message is the server's."""


@dataclass(frozen=True)
class Answer:
    """A finished single request."""

    record: StreamRecord
    ttft: float
    """Seconds from the request to its first token."""

    @property
    def warm(self) -> bool | None:
        """Whether the server had the prompt cached; None where it does not say."""
        return is_warm(self.record.cached_tokens, self.record.prompt_tokens)


class Asker:
    """Sends single requests over a client of its own; one per cell."""

    def __init__(
        self, connection: Connection, engine: Engine, timing: Timing, memory: Memory
    ) -> None:
        self._client = StreamClient(connection)
        self._engine = engine
        self._timing = timing
        self._memory = memory

    async def aclose(self) -> None:
        await self._client.aclose()

    def first_token_limit(self, context: int) -> float:
        """Seconds until a request without a token has failed."""
        return self._timing.first_token_s or self._memory.first_token_limit(context)

    async def ask(self, prompt: Prompt, max_tokens: int = 1, streams: int = 1) -> Answer:
        """Send a prompt for a token or few, while ``streams`` such requests share the server.

        A field that the server rejects is left out, here and from then on.

        Raises:
            PromptTooLong: the server has no room for it.
            Invalid: it failed otherwise.
        """
        form = self._memory.form
        while True:
            record = StreamRecord()
            await self._client.stream(
                form.path,
                json.dumps(form.body(prompt, max_tokens)).encode(),
                record,
                first_token_s=self.first_token_limit(prompt.context) * streams,
                stall_s=self._timing.stall_s,
            )
            first = record.first_token_at
            if record.end == "finished" and first is not None and record.sent_at is not None:
                return Answer(record, first - record.sent_at)
            if form.give_way(record.status, record.error):
                continue
            if no_room(record.status, record.error):
                raise PromptTooLong(record.error)
            raise Invalid(f"a single request failed: {record.error}")

    async def ask_all(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """The same for several prompts at once, each for a few tokens."""
        streams = len(prompts)
        await self._client.open(streams)
        return await asyncio.gather(*(self.ask(p, OVERLAP_TOKENS, streams) for p in prompts))

    async def ask_fresh(self, context: int, reserve: int) -> tuple[Prompt, Answer]:
        """Send a new prompt of exactly this context, uncached, for one token.

        A prompt whose length the server counts otherwise is corrected once. One that the server
        refuses, naming its limit, is shortened once so that it leaves room for ``reserve``
        output tokens.

        Raises:
            DoesNotFit: the server does not take prompts of this context.
            Invalid: the server cut the prompt, or the request failed.
        """
        prompts = self._memory.prompts
        corrected = shortened = False
        while True:
            await self._calibrate(context)
            prompt = prompts.make(context)
            try:
                answer = await self.ask(prompt)
            except PromptTooLong as refusal:
                if shortened or not self.shorten(context, str(refusal), reserve):
                    raise DoesNotFit(
                        Capacity(reason=f"the server has no room for it: {refusal}")
                    ) from None
                shortened = True
                continue
            counted = answer.record.prompt_tokens
            if counted is None:
                return prompt, answer
            short = counted < LEAST_SHARE * prompt.target
            if short and (corrected or prompts.exact):
                raise Invalid(
                    f"prompt truncated: the server read {counted:,} of {prompt.target:,} tokens"
                )
            if corrected or not prompts.learn(prompt, counted):
                return prompt, answer
            corrected = True

    def shorten(self, context: int, refusal: str, reserve: int) -> bool:
        """After a refusal: aim below the limit it names. False when that would be another
        context."""
        limit = named_limit(refusal) or 0
        margin = 16 if self._memory.prompts.exact else max(16, limit // 100)
        target = limit - reserve - margin
        if target < LEAST_SHARE * context or target >= context:
            return False
        self._memory.prompts.aim(context, target)
        return True

    async def _calibrate(self, context: int) -> None:
        async def probe(prompt: Prompt) -> int | None:
            return (await self.ask(prompt)).record.prompt_tokens

        try:
            await self._memory.prompts.calibrate(context, self._engine.count_tokens, probe)
        except ContextTooShort as error:
            raise Invalid(str(error)) from None
        except PromptTooLong as refusal:
            raise DoesNotFit(Capacity(reason=f"the server has no room for it: {refusal}")) from None
