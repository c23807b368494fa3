"""Prompts of an exact length, as the server counts them with its chat template.

A prompt is a nonce, reference text and an instruction. The nonce stands first, so that nothing of
an earlier prompt is in the server's cache; its digits cost every tokenizer the same whatever they
are, so prompts of one length may differ in it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.engines.base import Message
from pytest_llmperf.measure.text import INSTRUCTION, ReferenceText
from pytest_llmperf.model.choices import Endpoint
from pytest_llmperf.model.errors import LlmPerfError

BATCH_TOKENS = 6000
"""Calibration never sends more than 8K; this leaves room for a tokenizer unlike the others."""
_GUESS = 1.2
"""Tokens a word of the reference text before anything was counted."""

Counter = Callable[[str | Sequence[Message]], Awaitable[int | None]]
"""The engine's tokenizer, or None from a server that has none."""
Probe = Callable[["Prompt"], Awaitable[int | None]]
"""Sends a prompt for one token; the prompt tokens the server reports, or None."""


class ContextTooShort(LlmPerfError):
    """The context is shorter than the instruction alone."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready to send."""

    context: int
    """The cell's context; 0: the instruction alone."""
    target: int
    """Tokens it is meant to have: the context, or less where that was trimmed."""
    text: str
    words: int = 0

    @property
    def messages(self) -> list[Message]:
        return [{"role": "user", "content": self.text}]

    def payload(self, endpoint: Endpoint) -> dict[str, Any]:
        """Its part of a request body."""
        if endpoint == "completions":
            return {"prompt": self.text}
        return {"messages": self.messages}


def tolerance(target: int, exact: bool) -> int:
    """How many tokens a prompt may be off: 0.1 % (at least 8) where the server has a tokenizer
    endpoint, else 1 %."""
    return max(8, target // 1000 if exact else target // 100)


class PromptMaker:
    """Makes prompts for a session, and learns from what the server counted. Bound to no loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._text = ReferenceText()
        self._random = random.SystemRandom()
        self._overhead: float | None = None
        self._per_word = _GUESS
        self._targets: dict[int, int] = {}
        self._words: dict[int, int] = {0: 0}
        self.exact = False
        """A tokenizer endpoint counted the prompts."""

    @property
    def overhead(self) -> int:
        """Tokens of nonce, instruction and chat template, as far as known."""
        return round(self._overhead or 0)

    def aim(self, context: int, target: int) -> None:
        """Make prompts of ``context`` only ``target`` tokens long, for a server that holds no
        more."""
        if self._targets.get(context) != target:
            self._targets[context] = target
            self._words.pop(context, None)

    def make(self, context: int) -> Prompt:
        """A prompt of a calibrated context with a nonce of its own."""
        return self._build(context, self._words[context])

    async def calibrate(self, context: int, count: Counter, probe: Probe) -> None:
        """Find how much text makes ``context`` tokens; once per context, later calls cost nothing.

        Raises:
            ContextTooShort: the context cannot hold the instruction.
        """
        if context in self._words:
            return
        target = self._targets.setdefault(context, context)
        overhead = await self._count(self._build(context, 0), count)
        if overhead is not None:
            self.exact = True
            await self._fit_slope(overhead, target, count)
            self._words[context] = await self._fit_whole(context, target, count)
        else:
            if self._overhead is None:
                await self._probe(context, target, probe)
            self._words[context] = self._estimate(target)

    def learn(self, prompt: Prompt, counted: int) -> bool:
        """Take in what the server counted for a prompt that was sent.

        True when that was off by more than is allowed: prompts of this context are made anew.
        """
        off = prompt.target - counted
        if not prompt.words or abs(off) <= tolerance(prompt.target, self.exact):
            return False
        per_word = max(counted - self.overhead, 1) / prompt.words
        self._words[prompt.context] = max(0, prompt.words + round(off / per_word))
        return True

    def _build(self, context: int, words: int) -> Prompt:
        if context == 0:
            return Prompt(0, 0, INSTRUCTION.strip())
        nonce = " ".join(str(self._random.randrange(10)) for _ in range(16))
        text = f"{nonce}{self._text.first(words)}{INSTRUCTION}"
        return Prompt(context, self._targets[context], text, words)

    def _estimate(self, target: int) -> int:
        words = round((target - self.overhead) / self._per_word)
        if words < 0:
            raise ContextTooShort(
                f"the instruction alone is {self.overhead} tokens, more than {target};"
                " use a longer context, or 0 for the instruction alone"
            )
        return words

    async def _count(self, prompt: Prompt, count: Counter) -> int | None:
        return await count(prompt.text if self._endpoint == "completions" else prompt.messages)

    async def _fit_slope(self, overhead: int, target: int, count: Counter) -> None:
        if self._overhead is None:
            self._overhead = overhead
            batch = round(min(target, BATCH_TOKENS) / _GUESS)
            self._per_word = (await count(self._text.first(batch)) or batch * _GUESS) / batch

    async def _fit_whole(self, context: int, target: int, count: Counter) -> int:
        """Count the whole prompt and correct its length, until it is well within tolerance; one
        that was shortened must stay below the server's limit."""
        words = self._estimate(target)
        slack = tolerance(target, exact=True) // 2 if target == context else 16
        for _ in range(4):
            whole = await self._count(self._build(context, words), count)
            if whole is None or abs(whole - target) <= slack:
                break
            if words:
                self._per_word = (whole - self.overhead) / words
            words = max(0, words + round((target - whole) / self._per_word))
        return words

    async def _probe(self, context: int, target: int, probe: Probe) -> None:
        """``tokens = overhead + slope x words`` through two small requests."""
        few, many = 20, max(100, round(min(target, BATCH_TOKENS) * 0.6 / _GUESS))
        low = await probe(self._build(context, few))
        high = await probe(self._build(context, many))
        if low is not None and high is not None and high > low:
            self._per_word = (high - low) / (many - few)
            self._overhead = low - few * self._per_word
        else:
            self._overhead = 0.0
