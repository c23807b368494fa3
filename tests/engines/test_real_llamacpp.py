"""llama.cpp's own server, with a small real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.measure.asking import OVERLAP_TOKENS
from pytest_llmperf.measure.counting import count
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import ServerInfo
from pytest_llmperf.server.connect import Connected
from tests.engines.fake import run
from tests.engines.inside import ask, gauges_of, measure, reach, wait_for_load
from tests.support.llamacpp import LlamaServer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("llamacpp_installed")]

KEY = "correct-horse"


@pytest.fixture(scope="module")
def server(llamacpp_installed: None) -> Iterator[LlamaServer]:
    """Four slots that split 16K, and a key."""
    with LlamaServer(n_ctx=16_384, slots=4, api_key=KEY) as started:
        yield started


def info_of(server: LlamaServer, key: str | None = None) -> ServerInfo:
    async def go() -> ServerInfo:
        async with reach(server.url, key) as found:
            return found.info

    return run(go())


def test_it_is_described(server: LlamaServer) -> None:
    info = info_of(server, KEY)
    assert (info.engine, info.model) == ("llama.cpp", "smol")
    assert (info.max_model_len, info.max_num_seqs, info.kv_tokens) == (4096, 4, None)
    assert info.quantization == "Q4_1"
    assert not info.notes


@pytest.mark.parametrize("key", [None, "wrong"])
def test_its_key_is_asked_for(server: LlamaServer, key: str | None) -> None:
    with pytest.raises(ConfigError, match=r"HTTP 401: Invalid API Key.*--llm-api-key"):
        info_of(server, key)


@pytest.mark.parametrize(
    "content", ["Hello", "one two three " * 50, "naïve <|im_start|> 中文 \n\n"]
)
def test_tokens_of_chat_and_text_are_those_it_then_counts(
    server: LlamaServer, content: str
) -> None:
    """The counts asked for beforehand equal the usage of the real requests."""
    messages: Any = [{"role": "user", "content": content}]

    async def go(found: Connected, client: httpx.AsyncClient) -> list[tuple[int | None, int]]:
        common = {"model": "smol", "max_tokens": 1}
        pairs = []
        for path, ours, prompt in (
            ("/v1/chat/completions", messages, {"messages": messages}),
            ("/v1/completions", content, {"prompt": content}),
        ):
            answer = await client.post(path, json=common | prompt)
            used = answer.json()["usage"]["prompt_tokens"]
            pairs.append((await found.engine.count_tokens(ours), used))
        return pairs

    for counted, used in ask(server.url, KEY, go):
        assert counted == used


def test_gauges_follow_the_load_and_come_back(server: LlamaServer) -> None:
    """Six requests on four slots; nothing is left when their clients have gone."""

    async def request(client: httpx.AsyncClient, i: int) -> None:
        body = {"prompt": f"{i} a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def go(found: Connected, client: httpx.AsyncClient) -> tuple[Gauges, Gauges, Gauges]:
        before = await gauges_of(found)
        load = [asyncio.create_task(request(client, i)) for i in range(6)]
        during = await wait_for_load(found, 4, 2)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        return before, during, await wait_for_load(found, 0, 0)

    before, during, after = ask(server.url, KEY, go)
    assert (before.running, before.waiting) == (0, 0)
    assert (during.running, during.waiting) == (4, 2)
    assert (after.running, after.waiting) == (0, 0)
    assert before.at < during.at < after.at


def test_counts_are_its_own(server: LlamaServer) -> None:
    """Two streams whose requests finish and restart in the window: each has the tokens that its
    usage says, and together they are what llama.cpp counts itself."""
    measured = measure(server.url, KEY, Cell("decode", 256, 2), max_tokens=16)
    assert len(measured.finished) > 2
    assert measured.found.token_source == "estimated"
    for record in measured.finished:
        assert (record.finish_reason, record.completion_tokens) == ("length", 16)
        # a token that is a part of a character brings no chunk
        assert 12 <= record.chunks[-1] <= 16
        (curve,) = count([[record]]).streams[0]
        assert curve.tokens[-1] == pytest.approx(16)
    # beside them it counted two rounds of two warming requests, what the two that were cut off
    # had got, and a few single tokens
    ended = 16 * len(measured.finished)
    assert ended <= measured.generated <= ended + 4 * OVERLAP_TOKENS + 2 * 16 + 8


def test_a_server_that_has_just_been_started_is_waited_for(llamacpp_installed: None) -> None:
    with LlamaServer(slots=1, n_ctx=2048, metrics=False, wait=False) as starting:
        info = info_of(starting)
    assert (info.kv_tokens, info.max_num_seqs) == (2048, 1)
    assert "--metrics" in info.notes[0]


def test_a_shared_pool_tells_the_same_as_a_split_one(llamacpp_installed: None) -> None:
    """Which is why its sum is unknown."""
    with LlamaServer(slots=2, n_ctx=2048, unified=True) as shared:
        info = info_of(shared)
    assert (info.max_model_len, info.max_num_seqs, info.kv_tokens) == (2048, 2, None)
