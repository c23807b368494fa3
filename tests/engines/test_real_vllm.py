"""vLLM itself, on the CPU, with a tiny model: ``pytest -m vllm``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.measure.asking import OVERLAP_TOKENS
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.window import bin_tokens
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.server.connect import Connected
from tests.engines.inside import ask, measure, reach, wait_for_load
from tests.engines.job import run_job
from tests.support.vllm import VllmServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.usefixtures("vllm_installed"),
]

KEY = "correct-horse"
SHORT = ("--llm-duration", "4", "--llm-settle", "0.5")


@pytest.fixture(scope="module")
def server(vllm_installed: None) -> Iterator[VllmServer]:
    """Four sequences at a time, a key, and cached tokens told."""
    args = ["--api-key", KEY, "--enable-prompt-tokens-details"]
    with VllmServer(max_num_seqs=4, args=args) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with the key in the environment."""
    monkeypatch.setenv("LLMPERF_API_KEY", KEY)
    return tmp_path


def test_it_is_described(server: VllmServer) -> None:
    async def go(found: Connected, _: httpx.AsyncClient) -> Connected:
        return found

    info = ask(server.url, KEY, go).info
    assert (info.engine, info.model, info.max_model_len) == ("vllm", "tiny", 4096)
    assert info.version is not None
    assert info.version.startswith("0.32")
    # 1 GiB of cache, less the block that vLLM keeps for itself
    assert info.kv_tokens == 2**21 - 128
    assert info.prefix_cache is True
    assert info.speculative is False
    assert not info.notes


@pytest.mark.parametrize("key", [None, "wrong"])
def test_its_key_is_asked_for(server: VllmServer, key: str | None) -> None:
    async def go() -> None:
        async with reach(server.url, key):
            pass

    with pytest.raises(ConfigError, match=r"HTTP 401.*--llm-api-key"):
        asyncio.run(go())


@pytest.mark.parametrize("content", ["Hello", "one two " * 200, "naïve <|im_start|> 中文 \n\n"])
def test_tokens_of_chat_and_text_are_those_it_then_counts(server: VllmServer, content: str) -> None:
    """The counts asked for beforehand equal the usage of the real requests."""
    messages: Any = [{"role": "user", "content": content}]

    async def go(found: Connected, client: httpx.AsyncClient) -> list[tuple[int | None, int]]:
        pairs = []
        for path, ours, prompt in (
            ("/v1/chat/completions", messages, {"messages": messages}),
            ("/v1/completions", content, {"prompt": content}),
        ):
            answer = await client.post(path, json={"model": "tiny", "max_tokens": 1} | prompt)
            used = answer.json()["usage"]["prompt_tokens"]
            pairs.append((await found.engine.count_tokens(ours), used))
        return pairs

    for counted, used in ask(server.url, KEY, go):
        assert counted == used


def test_a_matrix_is_measured(server: VllmServer, folder: Path) -> None:
    """Prompts of exact length, every stream busy, and tok/s as vLLM counts them itself."""
    grid = ["--llm-contexts", "512,2K", "--llm-concurrency", "1,2,4", "--llm-max-tokens", "256"]
    job = run_job(folder, server.url, *grid, *SHORT)
    assert job.code == 0, job.text
    assert len(job.cells) == 8
    compared = 0
    for name, cell in job.cells.items():
        measured = cell["measurement"]
        assert measured["status"] == "valid", (name, measured["reason"])
        assert abs(measured["prompt_tokens"] - measured["context"]) <= 8, name
        if measured["phase"] == "prefill":
            continue
        assert measured["token_source"] == "usage", name
        # also 512: all but the last of vLLM's blocks of 128 tokens, which is never cached
        assert measured["ttft_warm"] is True, name
        assert measured["in_flight_avg"] == pytest.approx(measured["concurrency"], rel=0.02)
        theirs = measured["server"]["generated_tok_s"]
        if theirs is not None:  # None: a scrape at an edge took too long to stand for it
            compared += 1
            assert measured["total_tok_s"] == pytest.approx(theirs, rel=0.02), name
    assert compared >= 3
    for context in ("512", "2K"):
        cold = job.measurement(f"prefill[{context}]")["ttft_ms"]
        warm = job.measurement(f"decode[{context}-c1]")["ttft_ms"]
        assert warm < cold, "the prefix cache makes the first token faster"


@pytest.mark.parametrize(("streams", "max_tokens"), [(2, 4096 - 512), (4, 64)])
def test_counts_are_vllms_own(server: VllmServer, streams: int, max_tokens: int) -> None:
    """With and without requests that finish and restart in the window: every request has the
    tokens it asked for or those it came to, and over the time between two scrapes our curves
    rise by what vLLM's counter rises."""
    measured = measure(server.url, KEY, Cell("decode", 512, streams), max_tokens)
    assert (len(measured.finished) > streams) == (max_tokens == 64)
    for record in measured.finished:
        assert record.tokens[-1] == record.completion_tokens == max_tokens
        assert record.finish_reason == "length"
    # it also counted warming requests, and what it made until it saw that the clients had left
    ours = sum(record.tokens[-1] for record in measured.records if record.tokens)
    assert ours <= measured.generated <= ours + 2 * streams * OVERLAP_TOKENS + 10 * streams
    first, *_, last = (scrape.gauges for scrape in measured.recording.scrapes)
    assert first.generated_tokens is not None
    assert last.generated_tokens is not None
    made = bin_tokens(
        count(measured.recording.records).streams, np.array([first.at, last.at], dtype=float)
    )
    theirs = last.generated_tokens - first.generated_tokens
    assert made[0] == pytest.approx(theirs, rel=0.02)


def test_more_streams_than_sequences_are_over_capacity(server: VllmServer, folder: Path) -> None:
    """This version does not tell its --max-num-seqs: the ramp finds it."""
    job = run_job(folder, server.url, "--llm-contexts", "512", "--llm-concurrency", "4,8",
                  "--llm-max-tokens", "256", "-k", "decode", *SHORT)  # fmt: skip
    assert job.code == 0, job.text
    assert job.measurement("decode[512-c4]")["status"] == "valid"
    measured = job.measurement("decode[512-c8]")
    assert measured["status"] == "over_capacity"
    assert "the server admits 4 of 8" in measured["reason"]
    assert measured["total_tok_s"] is None


def test_a_client_that_leaves_frees_its_requests(server: VllmServer) -> None:
    """Six requests on four places; nothing is left soon after their clients have gone."""

    async def request(client: httpx.AsyncClient, i: int) -> None:
        body = {"model": "tiny", "prompt": f"{i} a", "max_tokens": 3000, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            async for _ in answer.aiter_raw():
                pass

    async def go(found: Connected, client: httpx.AsyncClient) -> tuple[Gauges, Gauges]:
        load = [asyncio.create_task(request(client, i)) for i in range(6)]
        during = await wait_for_load(found, 4, 2)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        return during, await wait_for_load(found, 0, 0)

    during, after = ask(server.url, KEY, go)
    assert (during.running, during.waiting) == (4, 2)
    assert (after.running, after.waiting) == (0, 0)
