"""Prompts have exactly the length asked for, as the server counts them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import pytest

from pytest_llmperf.engines.base import Message
from pytest_llmperf.measure.prompts import ContextTooShort, Prompt, PromptMaker, tolerance
from pytest_llmperf.measure.text import INSTRUCTION

TEMPLATE = 24

Tokenizer = Callable[[str], int]


def by_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def by_letters(text: str) -> int:
    return len(re.findall(r"\w{1,3}|[^\w\s]", text))


def by_bytes(text: str) -> int:
    return len(text)


def counting(tokenizer: Tokenizer) -> Callable[[str | Sequence[Message]], object]:
    async def count(prompt: str | Sequence[Message]) -> int | None:
        if isinstance(prompt, str):
            return tokenizer(prompt) + 1
        return TEMPLATE + sum(tokenizer(message["content"]) for message in prompt)

    return count


async def no_tokenizer(prompt: str | Sequence[Message]) -> int | None:
    return None


async def no_probe(prompt: Prompt) -> int | None:
    raise AssertionError("a server with a tokenizer needs no probe")


@pytest.mark.parametrize("tokenizer", [by_words, by_letters, by_bytes])
@pytest.mark.parametrize("context", [512, 1024, 8192, 131_072])
def test_with_a_tokenizer_the_length_is_exact(tokenizer: Tokenizer, context: int) -> None:
    """Within 8 tokens or 0.1 %, whatever the tokenizer is like."""
    maker = PromptMaker("chat")
    asyncio.run(maker.calibrate(context, counting(tokenizer), no_probe))
    for _ in range(3):
        counted = TEMPLATE + tokenizer(maker.make(context).text)
        assert abs(counted - context) <= tolerance(context, exact=True)


@pytest.mark.parametrize("tokenizer", [by_words, by_letters])
def test_d3_without_a_tokenizer_two_small_probes_and_one_correction_hold_one_percent(
    tokenizer: Tokenizer,
) -> None:
    """D1, D3: the server's own counts decide, and no probe exceeds 8K tokens."""
    probes: list[int] = []

    async def probe(prompt: Prompt) -> int | None:
        probes.append(TEMPLATE + tokenizer(prompt.text))
        return probes[-1]

    maker = PromptMaker("chat")
    for context in (1024, 8192, 131_072):
        asyncio.run(maker.calibrate(context, no_tokenizer, probe))
        prompt = maker.make(context)
        counted = TEMPLATE + tokenizer(prompt.text)
        if maker.learn(prompt, counted):
            counted = TEMPLATE + tokenizer(maker.make(context).text)
        assert abs(counted - context) <= 0.01 * context
    assert len(probes) == 2
    assert max(probes) <= 8192


def test_a_prompt_of_the_right_length_is_left_alone() -> None:
    maker = PromptMaker("chat")
    asyncio.run(maker.calibrate(8192, counting(by_words), no_probe))
    assert not maker.learn(maker.make(8192), 8190)


def test_d5_the_nonce_stands_first_and_is_never_the_same() -> None:
    maker = PromptMaker("chat")
    asyncio.run(maker.calibrate(1024, counting(by_words), no_probe))
    heads = [maker.make(1024).text[:31] for _ in range(20)]
    assert len(set(heads)) == 20
    assert all(re.fullmatch(r"\d( \d){15}", head) for head in heads)


def test_context_0_is_the_instruction_alone() -> None:
    maker = PromptMaker("chat")
    asyncio.run(maker.calibrate(0, no_tokenizer, no_probe))
    prompt = maker.make(0)
    assert prompt.text == INSTRUCTION.strip()


def test_a_context_shorter_than_the_instruction_is_refused() -> None:
    maker = PromptMaker("chat")
    with pytest.raises(ContextTooShort, match="use a longer context, or 0"):
        asyncio.run(maker.calibrate(32, counting(by_words), no_probe))


def test_a_shortened_prompt_stays_below_its_aim() -> None:
    """The 512K row of a server that takes 524,288 tokens in all."""
    maker = PromptMaker("chat")
    maker.aim(524_288, 524_288 - 65)
    asyncio.run(maker.calibrate(524_288, counting(by_words), no_probe))
    prompt = maker.make(524_288)
    assert prompt.target == 524_223
    assert 524_223 - 16 <= TEMPLATE + by_words(prompt.text) <= 524_223 + 16


def test_endpoints_get_the_prompt_in_their_own_form() -> None:
    prompt = Prompt(8, 8, "hello")
    assert prompt.payload("chat") == {"messages": [{"role": "user", "content": "hello"}]}
    assert prompt.payload("completions") == {"prompt": "hello"}
