"""The simulated server as a whole: what any client can rely on."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_llmperf.sim.process import start
from pytest_llmperf.sim.truth import read_truth
from tests.sim.serving import (
    FAST,
    chat,
    client,
    complete,
    metric,
    serving,
    text_of,
    wait_for,
)


async def _together(url: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60, trust_env=False) as http:
        posts = (http.post("/v1/chat/completions", json=body) for body in bodies)
        return list(await asyncio.gather(*posts))


def test_counts_agree_with_usage() -> None:
    """Tokens asked for, sent, reported and counted by /metrics are one number."""
    with serving(FAST) as (process, http):
        sizes = [1, 2, 7, 64, 300]
        answers = asyncio.run(_together(process.url, [chat(n, stream=False) for n in sizes]))
        usage = [a.json()["usage"] for a in answers]
        texts = [a.json()["choices"][0]["message"]["content"] for a in answers]
        assert [u["completion_tokens"] for u in usage] == sizes
        assert [len(text.split()) for text in texts] == sizes
        assert metric(http, "vllm:generation_tokens_total") == sum(sizes)
        assert metric(http, "vllm:prompt_tokens_total") == sum(u["prompt_tokens"] for u in usage)


def test_tokenize_counts_what_a_request_will_count() -> None:
    with serving(FAST) as (_, http):
        body = chat(1, "Naïve words,\n\nand  spaces 中文 " * 50)
        asked = http.post("/tokenize", json={"messages": body["messages"]}).json()
        assert asked["count"] == len(asked["tokens"])
        assert complete(http, body)[-2]["usage"]["prompt_tokens"] == asked["count"]
        plain = http.post("/tokenize", json={"prompt": "a text"}).json()["count"]
        answer = http.post("/v1/completions", json={"prompt": "a text", "max_tokens": 1})
        assert answer.json()["usage"]["prompt_tokens"] == plain
        ids = {"prompt": [5, 6, 7], "max_tokens": 1}
        answer = http.post("/v1/completions", json=ids)
        assert answer.json()["usage"]["prompt_tokens"] == 3


def test_streams_differ_and_do_not_repeat() -> None:
    """Identical or looping streams would be taken for a fault."""
    with serving(FAST) as (_, http):
        texts = [text_of(complete(http, chat(2000))).split() for _ in range(2)]
    assert texts[0] != texts[1]
    assert len({*texts[0]}) > 1000


def test_an_answer_without_ignore_eos_ends_by_itself() -> None:
    with serving(FAST) as (_, http):
        found = complete(http, chat(None, ignore_eos=False))
        assert found[-3]["choices"][0]["finish_reason"] == "stop"
        assert complete(http, chat(3))[-3]["choices"][0]["finish_reason"] == "length"


def test_equal_seeds_make_equal_steps() -> None:
    def chunks(seed: int) -> list[int]:
        with serving(f"{FAST}seed={seed}") as (_, http):
            return [e["usage"]["completion_tokens"] for e in complete(http, chat(200))[:-1]]

    first, again, other = chunks(1), chunks(1), chunks(2)
    assert first == again
    assert first != other


def test_requests_beyond_the_slots_wait(tmp_path: Path) -> None:
    """Never more run than there are slots, by the gauges and by the truth."""
    path = tmp_path / "truth.jsonl"
    with serving(f"{FAST}slots=2&decode_speed=0.05&truth={path}") as (process, http):
        seen = []
        thread = threading.Thread(
            target=lambda: asyncio.run(_together(process.url, [chat(150)] * 5))
        )
        thread.start()
        while thread.is_alive():
            seen.append((metric(http, "vllm:num_requests_running"),
                         metric(http, "vllm:num_requests_waiting")))  # fmt: skip
        thread.join()
    assert max(running for running, _ in seen) == 2
    assert max(waiting for _, waiting in seen) == 3
    lives = [(t.admitted, t.ended) for t in read_truth(path)]
    for at, _ in lives:
        assert at is not None
        assert sum(a <= at < e for a, e in lives if a is not None and e is not None) <= 2


def test_distinct_prompts_queue_where_a_shared_one_fits(tmp_path: Path) -> None:
    """64 blocks of 16 tokens, prompts of 18 full ones and a part, 30 tokens of answer: 21 blocks
    each. Four on one prompt need 18 + 4 x 3; of four on prompts of their own, three fit."""
    text = "word " * 252

    def most_running(texts: list[str]) -> float:
        path = tmp_path / f"{len({*texts})}.jsonl"
        spec = f"{FAST}kv_tokens={65 * 16}&max_model_len=512&decode_speed=0.05&truth={path}"
        with serving(spec) as (process, http):
            usage = complete(http, chat(1, texts[0]))[-2]["usage"]
            assert 18 * 16 <= usage["prompt_tokens"] < 18 * 16 + 16
            asyncio.run(_together(process.url, [chat(30, text) for text in texts]))
        lives = [(t.admitted, t.ended) for t in read_truth(path)[1:]]
        spans = [(a, e) for a, e in lives if a is not None and e is not None]
        assert len(spans) == 4
        return max(sum(a <= at < e for a, e in spans) for at, _ in spans)

    assert most_running([text] * 4) == 4
    assert most_running([f"{i} {text}" for i in range(4)]) == 3


def test_a_queued_request_that_leaves_is_forgotten() -> None:
    with (
        serving(f"{FAST}slots=1&decode_speed=0.02") as (process, http),
        client(process) as first,
        first.stream("POST", "/v1/chat/completions", json=chat(2000)) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        with (
            client(process) as second,
            second.stream("POST", "/v1/chat/completions", json=chat(2000)),
        ):
            assert wait_for(lambda: metric(http, "vllm:num_requests_waiting") == 1)
        assert wait_for(lambda: metric(http, "vllm:num_requests_waiting") == 0)
        assert metric(http, "vllm:num_requests_running") == 1


def test_128_streams_each_get_all_their_tokens(tmp_path: Path) -> None:
    """One step serves all of them at one time."""
    path = tmp_path / "truth.jsonl"
    with serving(f"{FAST}acceptance=1e-9&decode_speed=0.2&truth={path}") as (process, _):
        answers = asyncio.run(_together(process.url, [chat(30)] * 128))
    assert all(a.text.endswith("data: [DONE]\n\n") for a in answers)
    truths = read_truth(path)
    assert {t.tokens for t in truths} == {30}
    times = {at for truth in truths for at, _ in truth.steps}
    assert len(times) < 128 * 30 / 4


def test_a_huge_prompt_does_not_stall_the_streams(tmp_path: Path) -> None:
    """8 MB take the tokenizer a quarter of a second; a stream goes on meanwhile. The best of
    three, since the machine may stall as well."""
    huge = chat(1, "words and words " * 500_000)

    def longest_gap(number: int) -> float:
        path = tmp_path / f"{number}.jsonl"
        with (
            start(f"sim:rtxpro6k_x4?truth={path}") as process,
            client(process) as http,
            client(process) as other,
            http.stream("POST", "/v1/chat/completions", json=chat(2000)) as stream,
        ):
            lines = stream.iter_lines()
            next(lines)
            assert other.post("/v1/chat/completions", json=huge).status_code == 400
        (truth,) = read_truth(path)
        assert len(truth.steps) > 10
        return max(b - a for (a, _), (b, _) in pairwise(truth.steps))

    assert any(longest_gap(number) < 0.1 for number in range(3))


def test_bad_bodies_are_refused_in_words() -> None:
    bad = {
        b"[1]": "no JSON object",
        b'"\xff"': "UTF-8",
        b"{}": "messages",
        b'{"messages": [1]}': "messages",
        b'{"messages": [], "max_tokens": "many"}': "max_tokens",
        b'{"messages": [], "stream_options": 3}': "stream_options",
    }
    with serving(FAST) as (_, http):
        for body, words in bad.items():
            answer = http.post("/v1/chat/completions", content=body)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
        assert len(complete(http, chat(1))) > 1


def test_the_openai_sdk_sees_the_truth(tmp_path: Path) -> None:
    """A client no one here wrote, unmodified: tokens, usage and times are those of the truth."""
    openai = pytest.importorskip("openai")
    path = tmp_path / "truth.jsonl"
    seen: list[tuple[float, int]] = []
    with start(f"{FAST}decode_speed=0.01&api_key=k&truth={path}") as process:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="k") as sdk:
            (model,) = sdk.models.list().data
            assert model.owned_by == "vllm"

            def ask(tokens: int, stream: bool) -> Any:
                return sdk.chat.completions.create(
                    model=model.id,
                    messages=[{"role": "user", "content": "Tell me a story"}],
                    max_tokens=tokens,
                    stream=stream,
                    extra_body={"ignore_eos": True},
                    **({"stream_options": {"include_usage": True}} if stream else {}),
                )

            whole = ask(5, stream=False)
            # what the SDK builds for its first stream is no part of the times
            assert len(list(ask(2, stream=True))) > 2
            text, usage = "", None
            for chunk in ask(200, stream=True):
                usage = chunk.usage or usage
                if chunk.choices and chunk.choices[0].delta.content:
                    seen.append((time.monotonic(), len(chunk.choices[0].delta.content.split())))
                    text += chunk.choices[0].delta.content
            with pytest.raises(openai.NotFoundError):
                sdk.completions.create(model="other", prompt="x")
        with (
            openai.OpenAI(base_url=f"{process.url}/v1", api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
    first, _, last = read_truth(path)
    assert whole.usage.completion_tokens == first.tokens == 5
    assert usage is not None
    assert usage.completion_tokens == last.tokens == len(text.split()) == 200
    assert usage.prompt_tokens == last.prompt_tokens
    assert [new for _, new in seen] == [new for _, new in last.steps]
    # the same time from the first to the last token, but for what a busy machine adds
    span = last.steps[-1][0] - last.steps[0][0]
    assert seen[-1][0] - seen[0][0] == pytest.approx(span, rel=0.05)


@pytest.mark.slow
def test_ten_thousand_requests_leave_no_growth() -> None:
    """Some ended by the client, some larger than what is tokenized in a thread."""

    async def many(url: str, count: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:

            async def worker(number: int) -> None:
                for i in range(number, count, 16):
                    text = f"{i} words " * (3000 if i % 100 == 0 else 3)
                    body = chat(4, text, stream=i % 2 == 0)
                    if i % 7:
                        await http.post("/v1/chat/completions", json=body)
                        continue
                    with_stream = http.stream("POST", "/v1/chat/completions", json=chat(400, text))
                    async with with_stream as answer:
                        await anext(answer.aiter_raw())

            await asyncio.gather(*map(worker, range(16)))

    def resident(pid: int) -> float:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    # little KV, so that the prefix cache is full from the start
    spec = f"{FAST}speed=2000&kv_tokens=32768&max_model_len=16384".replace("speed=100&", "")
    with serving(spec) as (process, http):
        asyncio.run(many(process.url, 2000))
        before = resident(process.pid)
        asyncio.run(many(process.url, 8000))
        assert wait_for(lambda: metric(http, "vllm:num_requests_running") == 0)
        assert resident(process.pid) - before < 4
