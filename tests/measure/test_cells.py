"""How cells end on servers that misbehave: with the right status and words, never with a number.

All scenes run once for the module, a few at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.page import MetricsPage
from pytest_llmperf.engines.sglang import SgLang
from pytest_llmperf.measure import validity
from pytest_llmperf.measure.asking import OVERLAP_TOKENS, is_warm
from pytest_llmperf.measure.events import CellProgress
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.measure.prompts import PromptMaker
from pytest_llmperf.measure.requests import RequestForm
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, ServerInfo, Status
from pytest_llmperf.model.settings import Connection, Workload
from tests.measure.paced import (
    PATH,
    QUICK,
    FakeEngine,
    Paced,
    gauges_of,
    measuring,
    quick_threads,
    tokens_of,
)
from tests.support.scripted import Reply, Request, ScriptedServer

Scene = Callable[[], Awaitable[Any]]
SCENES: dict[str, Scene] = {}
AT_ONCE = 6
"""Scenes: they keep real time in one interpreter, and each needs its share of it."""


def scene(play: Scene) -> Scene:
    SCENES[play.__name__] = play
    return play


@pytest.fixture(scope="module")
def scenes() -> dict[str, Any]:
    """What every scene came to. The test machine being busy is not what they are about."""

    async def play() -> list[Any]:
        places = asyncio.Semaphore(AT_ONCE)

        async def in_turn(run: Scene) -> Any:
            async with places:
                return await run()

        return await asyncio.gather(*map(in_turn, SCENES.values()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validity, "client_bound", lambda health: None)
        patch.setattr(validity, "BUSY", 0.8)
        with quick_threads():
            return dict(zip(SCENES, asyncio.run(play()), strict=True))


def decode(context: int = 512, streams: int = 2) -> Cell:
    return Cell("decode", context, streams)


def prefill(context: int = 2048) -> Cell:
    return Cell("prefill", context)


def codes(measurement: Measurement) -> set[str]:
    return {notice.code for notice in measurement.warnings}


def no_gauges() -> FakeEngine:
    return FakeEngine(counts=tokens_of)


# Over capacity


@scene
async def two_slots_with_gauges() -> Measurement:
    paced = Paced(slots=2)
    with measuring(paced, engine=FakeEngine(gauges_of(paced), counts=tokens_of)) as (measurer, _):
        return await measurer.decode(decode(streams=4))


@scene
async def two_slots_without_gauges() -> Measurement:
    with measuring(Paced(slots=2)) as (measurer, _):
        return await measurer.decode(decode(streams=4))


@scene
async def two_slots_in_turn() -> Measurement:
    with measuring(Paced(slots=2), workload=Workload(max_tokens=20)) as (measurer, _):
        return await measurer.decode(decode(streams=4))


@scene
async def two_slots_in_turn_with_gauges() -> Measurement:
    paced = Paced(slots=2)
    with measuring(
        paced,
        engine=FakeEngine(gauges_of(paced), counts=tokens_of),
        workload=Workload(max_tokens=20),
    ) as (measurer, _):
        return await measurer.decode(decode(streams=4))


@pytest.mark.parametrize(
    "name",
    [
        "two_slots_with_gauges",
        "two_slots_without_gauges",
        "two_slots_in_turn",
        "two_slots_in_turn_with_gauges",
    ],
)
def test_c10_streams_that_are_not_admitted_are_over_capacity(
    scenes: dict[str, Any], name: str
) -> None:
    """C10, E14: 4 asked for, 2 run; no number for 4, with gauges and without."""
    found = scenes[name]
    assert found.status == Status.OVER_CAPACITY
    assert "the server admits 2 of 4" in found.reason
    assert found.total_tok_s is None
    assert found.capacity is not None
    assert found.capacity.needs == 4 * (512 + (20 if "turn" in name else 4096))


@scene
async def pool_runs_out() -> Measurement:
    async def run_out(reply: Reply) -> None:
        await reply.event({"error": {"code": 500, "message": "Context size has been exceeded."}})
        await reply.end_stream()

    with measuring(ending(15, run_out)) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.decode(decode())


def test_a_pool_that_runs_out_under_all_streams_is_over_capacity(scenes: dict[str, Any]) -> None:
    """Slots that share one KV cache: each stream fits, together they do not, as llama.cpp says
    after HTTP 200. The server cannot hold the cell; it is not broken."""
    found = scenes["pool_runs_out"]
    assert found.status == Status.OVER_CAPACITY
    assert found.reason == "the server has no room for it: Context size has been exceeded."
    assert found.total_tok_s is None


def refuse_above(limit: int) -> Callable[[int, dict[str, Any]], tuple[int, object] | None]:
    """What vLLM says when prompt and output exceed its limit."""

    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object] | None:
        prompt = tokens_of(body["messages"][0]["content"])
        if prompt + body["max_tokens"] <= limit:
            return None
        return 400, (
            f"This model's maximum context length is {limit} tokens. However, you requested"
            f" {prompt + body['max_tokens']} tokens ({prompt} in the messages,"
            f" {body['max_tokens']} in the completion)."
        )

    return refuse


@scene
async def refused_and_shortened() -> tuple[Measurement, Paced]:
    paced = Paced(refuse=refuse_above(2048 + 100 - 8))
    with measuring(paced, workload=Workload(max_tokens=100)) as (measurer, _):
        return await measurer.decode(decode(2048)), paced


def test_d1_a_refusal_that_names_the_limit_shortens_the_prompt_once(
    scenes: dict[str, Any],
) -> None:
    """D1: 4,106 tokens where 4,096 were meant."""
    found, _ = scenes["refused_and_shortened"]
    assert found.status == Status.VALID
    assert found.prompt_tokens == pytest.approx(2048 - 8 - 16, abs=16)
    assert "trimmed" in codes(found)


@scene
async def refused_twice() -> tuple[Measurement, Paced]:
    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object]:
        return 400, "This model's maximum context length is 2040 tokens."

    paced = Paced(refuse=refuse)
    with measuring(paced) as (measurer, _):
        return await measurer.prefill(prefill()), paced


def test_d1_a_second_refusal_means_that_the_cell_does_not_fit(scenes: dict[str, Any]) -> None:
    found, paced = scenes["refused_twice"]
    assert found.status == Status.OVER_CAPACITY
    assert "maximum context length is 2040" in found.reason
    assert len(paced.bodies) <= 2


@scene
async def refused_when_warming() -> Measurement:
    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object] | None:
        words = "This model's maximum context length is 513 tokens"
        return (400, words) if body["max_tokens"] == OVERLAP_TOKENS else None

    paced = Paced(refuse=refuse, cached=lambda seen, prompt: prompt - 5 if seen else 0)
    with measuring(paced) as (measurer, _):
        return await measurer.decode(decode())


def test_a_refusal_of_the_warming_requests_is_over_capacity(scenes: dict[str, Any]) -> None:
    """They ask for a few tokens where the fresh prompt asked for one; nothing is raised."""
    assert scenes["refused_when_warming"].status == Status.OVER_CAPACITY


@scene
async def more_output_than_the_model_takes() -> Measurement:
    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object] | None:
        words = "max_tokens=131072 cannot be greater than max_model_len=max_total_tokens=40960"
        return (400, words) if body["max_tokens"] > 40960 else None

    paced = Paced(refuse=refuse)
    with measuring(paced, workload=Workload(max_tokens=131_072)) as (measurer, _):
        return await measurer.decode(decode())


def test_d10_refused_requests_are_a_status_and_never_a_zero(scenes: dict[str, Any]) -> None:
    """D10: all requests 400."""
    found = scenes["more_output_than_the_model_takes"]
    assert found.status == Status.OVER_CAPACITY
    assert "max_tokens=131072" in found.reason
    assert found.total_tok_s is None


@scene
async def longest_prefill() -> Measurement:
    info = ServerInfo(engine="fake", model="m", max_model_len=2048)
    with measuring(Paced(refuse=refuse_above(2048)), info=info) as (measurer, _):
        return await measurer.prefill(prefill(2048))


def test_a_prefill_of_the_whole_limit_is_trimmed_and_says_so(scenes: dict[str, Any]) -> None:
    """The 512K row of a server that takes 524,288 tokens in all."""
    found = scenes["longest_prefill"]
    assert found.status == Status.VALID
    assert found.prompt_tokens == pytest.approx(2048 - 65, abs=16)
    assert "trimmed" in codes(found)


# Invalid


@scene
async def hung() -> tuple[Measurement, float]:
    began = time.monotonic()
    with measuring(Paced(ttft=60.0)) as (measurer, _):
        return await measurer.decode(decode()), time.monotonic() - began


def test_a_server_that_hangs_ends_the_cell_at_the_first_token_deadline(
    scenes: dict[str, Any],
) -> None:
    found, seconds = scenes["hung"]
    assert found.status == Status.INVALID
    assert "no token within 1 s" in found.reason
    assert seconds < 5


def ending(
    words: int, then: Callable[[Reply], Awaitable[None]]
) -> Callable[[Request, Reply], Awaitable[None]]:
    """Sends some words of a long answer, one in 20 ms, then does something else."""
    paced = Paced()

    async def handle(request: Request, reply: Reply) -> None:
        if request.json["max_tokens"] == 1:
            await paced(request, reply)
            return
        await reply.start_stream()
        for i in range(words):
            await reply.event({"choices": [{"index": 0, "delta": {"content": f"w{i} "}}]})
            await asyncio.sleep(0.02)
        await then(reply)

    return handle


@scene
async def stalled() -> Measurement:
    async def stall(reply: Reply) -> None:
        await asyncio.sleep(30)

    timing = replace(QUICK, stall_s=0.4)
    with measuring(ending(20, stall), timing=timing) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.decode(decode())


def test_c19_a_stall_has_a_short_limit_of_its_own(scenes: dict[str, Any]) -> None:
    """C19: no token for 0.4 s after the first; waiting for a first token may take longer."""
    found = scenes["stalled"]
    assert found.status == Status.INVALID
    assert "stalled: no token for 0.4 s" in found.reason


def test_c19_the_first_token_deadline_scales_with_the_context() -> None:
    """C19: 256K took 92 s on one machine; known smaller cells tell more than a guess."""
    memory = Memory(PromptMaker("chat"), RequestForm("m", Workload()))
    assert memory.first_token_limit(262_144) > 5 * 92
    assert memory.first_token_limit(8192) < 180
    memory.first_token_s[131_072] = 30.0
    assert 3 * 92 < memory.first_token_limit(262_144) < 1000
    assert memory.first_token_limit(8192) < 180


@scene
async def rate_limited() -> tuple[Measurement, Paced]:
    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object] | None:
        return (429, "slow down") if number == 3 else None

    paced = Paced(refuse=refuse)
    with measuring(paced) as (measurer, _):
        return await measurer.decode(decode()), paced


def test_c22_a_measured_request_is_never_tried_again(scenes: dict[str, Any]) -> None:
    """C22: 429, then 200: the cell is invalid, and nothing was sent twice."""
    found, paced = scenes["rate_limited"]
    assert found.status == Status.INVALID
    assert "HTTP 429: slow down" in found.reason
    assert len(paced.bodies) == 4


@scene
async def in_band_error() -> Measurement:
    async def fail(reply: Reply) -> None:
        await reply.event({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        await reply.event("[DONE]")
        await reply.end_stream()

    with measuring(ending(15, fail)) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.decode(decode())


def test_an_error_in_a_stream_invalidates_with_the_servers_words(scenes: dict[str, Any]) -> None:
    found = scenes["in_band_error"]
    assert found.status == Status.INVALID
    assert "EngineCore encountered an issue" in found.reason
    assert found.total_tok_s is None


@scene
async def dies() -> tuple[Measurement, float]:
    async def die(reply: Reply) -> None:
        reply.abort()

    timing = replace(QUICK, duration_s=30.0)
    began = time.monotonic()
    with measuring(ending(30, die), timing=timing) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.decode(decode()), time.monotonic() - began


def test_a_server_that_dies_ends_the_cell_at_once(scenes: dict[str, Any]) -> None:
    found, seconds = scenes["dies"]
    assert found.status == Status.INVALID
    assert "requests failed: the server closed the connection after 30 chunks" in found.reason
    assert seconds < 8


@scene
async def refused_connection() -> list[Measurement]:
    connection = Connection("http://127.0.0.1:9")
    info = ServerInfo(engine="fake", model="m")
    measurer = Measurer(
        ServerApi(connection), no_gauges(), info, connection, Workload(), QUICK, "reserved", None
    )
    return [await measurer.prefill(prefill()), await measurer.decode(decode())]


def test_a_refused_connection_is_an_invalid_cell_not_an_exception(
    scenes: dict[str, Any],
) -> None:
    for found in scenes["refused_connection"]:
        assert found.status == Status.INVALID
        assert "127.0.0.1:9" in found.reason


@scene
async def truncating() -> Measurement:
    with measuring(Paced(prompt_tokens=lambda text: min(tokens_of(text), 400))) as (measurer, _):
        return await measurer.decode(decode())


def test_a_server_that_cuts_the_prompt_invalidates(scenes: dict[str, Any]) -> None:
    found = scenes["truncating"]
    assert found.status == Status.INVALID
    assert found.reason == "prompt truncated: the server read 400 of 512 tokens"


@scene
async def busy_with_others() -> Measurement:
    engine = FakeEngine(lambda: Gauges(at=time.monotonic(), running=3, waiting=1))
    with measuring(Paced(), engine=engine) as (measurer, _):
        return await measurer.decode(decode())


def test_e21_other_traffic_keeps_a_cell_from_starting(scenes: dict[str, Any]) -> None:
    found = scenes["busy_with_others"]
    assert found.status == Status.INVALID
    assert "other traffic on the server: 3 running and 1 waiting" in found.reason


@scene
async def abort_ignored() -> list[Measurement]:
    paced = Paced(goes_on=0.5)
    engine = FakeEngine(gauges_of(paced), counts=tokens_of)
    with measuring(paced, engine=engine) as (measurer, _):
        return [await measurer.decode(decode()), await measurer.decode(decode(streams=1))]


def test_e21_a_cell_waits_for_what_the_one_before_left_running(scenes: dict[str, Any]) -> None:
    """E21: the server decodes on for 0.5 s after its clients left."""
    first, second = scenes["abort_ignored"]
    assert (first.status, second.status) == (Status.VALID, Status.VALID)
    assert second.ttft_ms == pytest.approx(20, abs=50)
    assert second.server.running_mean == pytest.approx(1)


@scene
async def aborted_by_id() -> list[Any]:
    paced, asked = Paced(goes_on=0.5), []

    async def abort(request: Request, reply: Reply) -> None:
        asked.append(request.json)
        await reply.respond(200)

    with ScriptedServer({PATH: paced, "/abort_request": abort}) as server:
        connection = Connection(server.url)
        api = ServerApi(connection)
        engine = SgLang(api, Card("m"), MetricsPage(api))
        info = ServerInfo(engine="sglang", model="m")
        measurer = Measurer(api, engine, info, connection, Workload(), QUICK)
        found = await measurer.decode(decode())
    return [found, asked, paced]


def test_e21_a_server_slow_to_notice_is_told_which_requests_to_end(scenes: dict[str, Any]) -> None:
    """E21: SGLang, which decodes on for 2 s after its client left. Only what ran is named."""
    found, asked, paced = scenes["aborted_by_id"]
    assert found.status == Status.VALID
    streams = [n for n, body in enumerate(paced.bodies) if body["max_tokens"] == 4096]
    assert sorted(body["rid"] for body in asked) == [f"r{n}" for n in streams]
    assert not any(body["abort_all"] for body in asked)


# Gauges that lie


@scene
async def gauge_one_short() -> list[Measurement]:
    paced = Paced()
    honest = gauges_of(paced)

    def short() -> Gauges:
        gauges = honest()
        return replace(gauges, running=max(0, (gauges.running or 0) - 1))

    with measuring(paced, engine=FakeEngine(short, counts=tokens_of)) as (measurer, _):
        return [await measurer.decode(decode(streams=3)), await measurer.decode(decode(streams=3))]


def test_e10_a_gauge_that_counts_one_too_few_turns_no_cell_away(scenes: dict[str, Any]) -> None:
    first, second = scenes["gauge_one_short"]
    assert (first.status, second.status) == (Status.VALID, Status.VALID)
    assert first.decoding_avg == pytest.approx(3)


@scene
async def gauge_never_moves() -> Measurement:
    engine = FakeEngine(lambda: Gauges(at=time.monotonic(), running=0, waiting=0), counts=tokens_of)
    with measuring(Paced(), engine=engine) as (measurer, _):
        return await measurer.decode(decode())


def test_a_gauge_that_never_moves_is_not_believed(scenes: dict[str, Any]) -> None:
    assert scenes["gauge_never_moves"].status == Status.VALID


@scene
async def no_metrics() -> tuple[Measurement, FakeEngine]:
    engine = no_gauges()
    with measuring(Paced(), engine=engine) as (measurer, _):
        return await measurer.decode(decode()), engine


def test_a_server_without_metrics_is_measured_all_the_same(scenes: dict[str, Any]) -> None:
    found, engine = scenes["no_metrics"]
    assert found.status == Status.VALID
    assert found.server.running_mean is None
    assert found.active_avg == found.in_flight_avg
    assert engine.scrapes < 10


def after(cells: list[Measurement], honest: Callable[[], Gauges], later: Any) -> FakeEngine:
    """An engine whose gauges are honest in the first cell; from then on as ``later`` says."""
    return FakeEngine(lambda: later(honest()) if cells else honest(), counts=tokens_of)


@scene
async def scrape_missed_in_ramp() -> Measurement:
    paced, cells, missed = Paced(), [], []

    def later(gauges: Gauges) -> Gauges | None:
        if missed or not gauges.running:
            return gauges
        missed.append(gauges)
        return None

    with measuring(paced, engine=after(cells, gauges_of(paced), later)) as (measurer, _):
        cells.append(await measurer.decode(decode()))
        return await measurer.decode(decode())


def test_one_scrape_that_was_missed_turns_no_cell_away(scenes: dict[str, Any]) -> None:
    """The ramp goes on looking, instead of taking the last answer for all that follow."""
    assert scenes["scrape_missed_in_ramp"].status == Status.VALID


@scene
async def metrics_gone() -> Measurement:
    paced, cells = Paced(), []
    with measuring(paced, engine=after(cells, gauges_of(paced), lambda _: None)) as (measurer, _):
        cells.append(await measurer.decode(decode()))
        return await measurer.decode(decode())


def test_metrics_that_are_gone_are_not_waited_for(scenes: dict[str, Any]) -> None:
    """They followed the load in earlier cells; this one is measured without."""
    assert scenes["metrics_gone"].status == Status.VALID


@scene
async def metrics_gone_in_ramp() -> Measurement:
    paced, cells = Paced(), []
    honest, seen = gauges_of(paced), []

    def later(gauges: Gauges) -> Gauges | None:
        """One of two runs, says the last answer there ever is."""
        if not gauges.running:
            return gauges
        seen.append(gauges)
        return replace(gauges, running=1, waiting=1) if len(seen) == 1 else None

    with measuring(paced, engine=after(cells, honest, later)) as (measurer, _):
        cells.append(await measurer.decode(decode()))
        return await measurer.decode(decode())


def test_a_gauge_from_before_the_metrics_were_gone_decides_nothing(scenes: dict[str, Any]) -> None:
    """It said that one of two streams waits; then all had tokens, and no more was heard of it."""
    assert scenes["metrics_gone_in_ramp"].status == Status.VALID


@scene
async def metrics_gone_in_window() -> tuple[Measurement, list[CellProgress]]:
    paced, events = Paced(), []
    honest = gauges_of(paced)

    def gauges() -> Gauges | None:
        inside = [event for event in events if event.step == "window"]
        return None if inside and inside[-1].elapsed_s > 0.1 else honest()

    engine = FakeEngine(gauges, counts=tokens_of)
    with measuring(paced, engine=engine, progress=events.append) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.decode(decode()), events


def test_metrics_that_go_in_the_window_leave_no_last_value_standing(
    scenes: dict[str, Any],
) -> None:
    """What the server did in the window is not told by its beginning."""
    found, events = scenes["metrics_gone_in_window"]
    assert found.status == Status.VALID
    assert found.server.generated_tok_s is None
    waiting = [event.waiting for event in events if event.step == "window"]
    assert waiting[0] == 0
    assert waiting[-1] is None


# Prefill


@scene
async def cold_prefill() -> tuple[Measurement, Paced]:
    paced = Paced(ttft=0.2, cached=lambda seen, prompt: 24)
    with measuring(paced) as (measurer, _):
        return await measurer.prefill(prefill(2048)), paced


def test_d6_a_prefill_is_cold_and_counts_only_what_was_worked_on(
    scenes: dict[str, Any],
) -> None:
    """D6: the warm-up is not a sample. Cached tokens are no work."""
    found, paced = scenes["cold_prefill"]
    assert found.status == Status.VALID
    assert len(found.prefill_samples) == 3
    assert 200 <= found.ttft_ms < 400
    assert found.prefill_tok_s == pytest.approx((2048 - 24) / found.ttft_ms * 1e3, rel=0.01)
    prompts = [body["messages"][0]["content"] for body in paced.bodies]
    assert len({prompt[:31] for prompt in prompts}) == len(prompts) == 4
    assert tokens_of(prompts[0]) == pytest.approx(8192, abs=9)
    assert all(body["max_tokens"] == 1 for body in paced.bodies)


async def prefill_of_llamacpp(cached: Callable[[int], int]) -> Measurement:
    """Its timings tell what was cached, and a speed over the rest only."""

    async def handle(request: Request, reply: Reply) -> None:
        prompt = tokens_of(request.json["messages"][0]["content"])
        await reply.start_stream()
        await asyncio.sleep(0.1)
        await reply.event({"choices": [{"index": 0, "delta": {"content": "Once"}}]})
        known = cached(prompt)
        timings = {"cache_n": known, "prompt_n": prompt - known, "prompt_ms": 30.958}
        timings |= {"prompt_per_second": 32.30, "predicted_n": 1, "predicted_ms": 18.9}
        end = {"index": 0, "delta": {}, "finish_reason": "length"}
        usage = {"prompt_tokens": prompt, "completion_tokens": 1}
        await reply.event({"choices": [end], "usage": usage, "timings": timings})
        await reply.event("[DONE]")
        await reply.end_stream()

    with measuring(handle) as (measurer, _):  # type: ignore[arg-type]
        return await measurer.prefill(prefill(512))


@scene
async def prefill_from_llamacpps_cache() -> Measurement:
    return await prefill_of_llamacpp(lambda prompt: prompt - 1)


@scene
async def prefill_past_llamacpps_cache() -> Measurement:
    return await prefill_of_llamacpp(lambda prompt: 4)


def test_d7_llamacpps_cache_is_neither_speed_nor_work(scenes: dict[str, Any]) -> None:
    """D7: cache_n of prompt_n; the tokens worked on by the time to the first token, and only where
    next to none were cached."""
    cached = scenes["prefill_from_llamacpps_cache"]
    assert cached.status == Status.INVALID
    assert "prompt tokens came from the server's cache" in cached.reason
    assert cached.prefill_tok_s is None
    cold = scenes["prefill_past_llamacpps_cache"]
    assert cold.status == Status.VALID
    assert cold.cached_tokens == 4
    assert cold.prefill_tok_s == pytest.approx((512 - 4) / cold.ttft_ms * 1e3, rel=0.02)


@scene
async def cached_prefill() -> Measurement:
    with measuring(Paced(cached=lambda seen, prompt: prompt - 100)) as (measurer, _):
        return await measurer.prefill(prefill(2048))


def test_d5_a_prefill_from_the_cache_is_invalid(scenes: dict[str, Any]) -> None:
    found = scenes["cached_prefill"]
    assert found.status == Status.INVALID
    assert "came from the server's cache" in found.reason
    assert found.prefill_tok_s is None


@scene
async def prefill_then_decode() -> tuple[list[Measurement], Paced]:
    paced = Paced()
    with measuring(paced) as (measurer, _):
        return [await measurer.prefill(prefill(1024)), await measurer.decode(decode(1024))], paced


def test_decode_goes_on_with_the_last_prefills_prompt(scenes: dict[str, Any]) -> None:
    _, paced = scenes["prefill_then_decode"]
    prompts = [body["messages"][0]["content"] for body in paced.bodies]
    assert len(prompts) == 4 + 1 + 2
    assert set(prompts[3:]) == {prompts[3]}


# Prompts and requests


@scene
async def tokenizer_of_its_own() -> tuple[Measurement, list[str]]:
    """It adds a token to whatever it is asked for, and counts a tenth less than is served."""
    asked: list[str] = []

    def counts(text: str) -> int:
        asked.append(text)
        return 1 + tokens_of(text)

    paced = Paced(prompt_tokens=lambda text: round(1.1 * tokens_of(text)))
    with measuring(paced, engine=FakeEngine(counts=counts)) as (measurer, _):
        return await measurer.decode(decode()), asked


def test_b7_generated_text_is_never_tokenized(scenes: dict[str, Any]) -> None:
    """B7: so no tokenizer can add to each chunk."""
    found, asked = scenes["tokenizer_of_its_own"]
    assert asked
    assert not any("of stream" in text for text in asked)
    assert found.total_tok_s == pytest.approx(100, rel=0.1)


def test_d2_the_served_count_decides_where_the_tokenizer_has_another(
    scenes: dict[str, Any],
) -> None:
    """D2: the prompt is made anew, and its length is what usage says."""
    found, _ = scenes["tokenizer_of_its_own"]
    assert found.prompt_tokens == pytest.approx(512, abs=8)
    assert "prompt-length" not in codes(found)


@scene
async def no_tokenizer() -> tuple[Measurement, Paced]:
    """Words of the text are three of its tokens: far from a token for every four characters."""
    paced = Paced(prompt_tokens=lambda text: 10 + 3 * len(text.split()))
    with measuring(paced, engine=FakeEngine()) as (measurer, _):
        return await measurer.decode(decode(16_384)), paced


def test_d3_prompts_are_as_long_as_the_server_counts_them(scenes: dict[str, Any]) -> None:
    """D3: within 1 %, by what it said of two small probes."""
    found, paced = scenes["no_tokenizer"]
    assert found.prompt_tokens == pytest.approx(16_384, rel=0.01)
    sent = [paced.prompt_tokens(body["messages"][0]["content"]) for body in paced.bodies]
    assert max(sent[:2]) <= 8192
    assert min(sent[2:]) > 8192


@scene
async def distinct_prompts() -> tuple[Measurement, Paced]:
    paced = Paced(cached=lambda seen, prompt: prompt - 5 if seen else 0)
    with measuring(paced, workload=Workload(prompts="distinct")) as (measurer, _):
        return await measurer.decode(decode(streams=3)), paced


def test_distinct_prompts_are_warmed_one_by_one(scenes: dict[str, Any]) -> None:
    found, paced = scenes["distinct_prompts"]
    assert found.status == Status.VALID
    assert found.ttft_warm is True
    measured = [b["messages"][0]["content"] for b in paced.bodies if b["max_tokens"] > 16]
    assert len(set(measured)) == len(measured) == 3


@scene
async def a_cache_for_each_slot() -> tuple[Measurement, Paced]:
    seen: list[str] = []

    def cached(known: bool, prompt: int) -> int:
        """The first of every pair of warming requests meets an empty slot."""
        seen.append("x")
        return prompt - 5 if len(seen) in (2, 3) or len(seen) > 4 else 0

    paced = Paced(cached=cached)
    with measuring(paced) as (measurer, _):
        return await measurer.decode(decode(streams=2)), paced


def test_caches_of_single_slots_are_warmed_before_the_streams_start(
    scenes: dict[str, Any],
) -> None:
    found, paced = scenes["a_cache_for_each_slot"]
    assert found.ttft_warm is True
    assert [body["max_tokens"] for body in paced.bodies] == [1, 1, 16, 16, 16, 16, 4096, 4096]


@scene
async def cached_in_large_blocks() -> Measurement:
    """vLLM on a CPU: 128 tokens a block."""
    paced = Paced(cached=lambda seen, prompt: (prompt - 1) // 128 * 128 if seen else 0)
    with measuring(paced) as (measurer, _):
        return await measurer.decode(decode(1000))


def test_all_but_the_last_block_in_the_cache_is_warm(scenes: dict[str, Any]) -> None:
    """896 of 1,000 tokens are all that can be."""
    found = scenes["cached_in_large_blocks"]
    assert found.cached_tokens < 0.9 * found.prompt_tokens
    assert found.ttft_warm is True


@pytest.mark.parametrize(
    ("cached", "prompt", "warm"),
    [
        (900, 1000, True),
        (896, 1000, True),
        (800, 1000, False),
        (128, 256, True),
        (3, 60, False),
        (48, 60, True),
        (0, 60, False),
        (None, 1000, None),
        (900, None, None),
    ],
)
def test_warm_is_all_that_a_cache_of_blocks_can_hold(
    cached: int | None, prompt: int | None, warm: bool | None
) -> None:
    """A chat template's head alone is not."""
    assert is_warm(cached, prompt) is warm


@scene
async def never_warm() -> Measurement:
    with measuring(Paced(cached=lambda seen, prompt: 0)) as (measurer, _):
        return await measurer.decode(decode())


def test_a_prompt_that_stays_out_of_the_cache_is_named(scenes: dict[str, Any]) -> None:
    found = scenes["never_warm"]
    assert found.status == Status.VALID
    assert found.ttft_warm is False
    assert "not-warm" in codes(found)


@scene
async def strict_server() -> tuple[Measurement, Paced]:
    def refuse(number: int, body: dict[str, Any]) -> tuple[int, object] | None:
        if "ignore_eos" in body:
            return 422, "Unexpected fields in the request: {'ignore_eos'}"
        if "continuous_usage_stats" in body.get("stream_options", {}):
            return 400, "Extra inputs are not permitted: stream_options.continuous_usage_stats"
        return None

    paced = Paced(refuse=refuse, usage="final")
    with measuring(paced, workload=Workload(max_tokens=20)) as (measurer, _):
        return await measurer.decode(decode()), paced


def test_b10_rejected_fields_are_dropped_once_per_server(scenes: dict[str, Any]) -> None:
    found, paced = scenes["strict_server"]
    assert found.status == Status.VALID
    assert (found.usage_mode, found.token_source) == ("final", "estimated")
    full = [b for b in paced.bodies if "ignore_eos" in b or len(b["stream_options"]) > 1]
    assert len(full) == 2


@scene
async def counts_at_the_end_only() -> Measurement:
    paced = Paced(usage="final", cached=lambda seen, prompt: prompt - 5 if seen else 0)
    with measuring(paced) as (measurer, _):
        return await measurer.decode(decode())


def test_where_no_request_ends_the_scout_knows_the_counts(scenes: dict[str, Any]) -> None:
    """llama.cpp tells its counts at the end of a request, and none ends in the window."""
    found = scenes["counts_at_the_end_only"]
    assert (found.usage_mode, found.token_source) == ("final", "chunks")
    assert found.prompt_tokens == pytest.approx(512, abs=8)
    assert found.ttft_warm is True
    assert codes(found) == set()


@scene
async def stops_early() -> Measurement:
    with measuring(Paced(stop_after=20)) as (measurer, _):
        return await measurer.decode(decode())


def test_d8_early_stops_keep_the_load_up_and_are_named(scenes: dict[str, Any]) -> None:
    """D8: every stream ends after 20 tokens in spite of ignore_eos."""
    found = scenes["stops_early"]
    assert found.status == Status.VALID
    assert {"early-stops", "restart-gaps"} <= codes(found)
    assert found.completed is not None
    assert found.completed >= 3
    assert found.in_flight_avg == pytest.approx(2, rel=0.2)


@scene
async def context_zero() -> Measurement:
    with measuring(Paced()) as (measurer, _):
        return await measurer.decode(decode(0))


def test_context_0_is_measured(scenes: dict[str, Any]) -> None:
    found = scenes["context_zero"]
    assert found.status == Status.VALID
    assert found.total_tok_s == pytest.approx(100, rel=0.2)


# The course of a cell


def test_c14_a_client_that_cannot_keep_up_has_no_number() -> None:
    """C14: something in its loop, as a tokenizer would be, takes 1.2 s of the window."""
    busy: list[CellProgress] = []

    def tokenize(event: CellProgress) -> None:
        if event.step == "window" and not busy:
            busy.append(event)
            time.sleep(1.2)

    with measuring(Paced(), timing=replace(QUICK, duration_s=2.0), progress=tokenize) as (  # type: ignore[arg-type]
        measurer,
        _,
    ):
        found = asyncio.run(measurer.decode(decode()))
    assert found.status == Status.INVALID
    assert found.reason.startswith("client bound")
    assert found.total_tok_s is None
    assert found.client.loop_lag_max_ms > 1000, "what was observed stays beside it"


@scene
async def told() -> list[CellProgress]:
    events: list[CellProgress] = []
    with measuring(Paced(), progress=events.append) as (measurer, _):  # type: ignore[arg-type]
        await measurer.decode(decode())
    return events


def test_progress_tells_the_steps_in_their_order(scenes: dict[str, Any]) -> None:
    events = scenes["told"]
    steps = list(dict.fromkeys(event.step for event in events))
    assert steps == ["drain", "scout", "ramp", "window", "close"]
    inside = [event for event in events if event.step == "window"]
    assert len(inside) >= 3
    assert all(event.requested == 2 for event in events)
    assert inside[-1].active == 2
    assert inside[-1].tok_s == pytest.approx(100, rel=0.3)
    assert inside[-1].left_s == pytest.approx(0, abs=0.5)


def test_a_measurer_goes_from_one_event_loop_to_the_next() -> None:
    """Every test has a loop of its own; what was learned stays."""
    paced = Paced()
    timing = replace(QUICK, duration_s=0.3)
    with measuring(paced, timing=timing) as (measurer, _):
        first = asyncio.run(measurer.decode(decode(streams=1)))
        second = asyncio.run(measurer.decode(decode(streams=1)))
    assert (first.reason, second.reason) == ("", "")
    assert [body["max_tokens"] for body in paced.bodies] == [1, 1, 4096, 1, 4096]


def test_an_interrupted_cell_leaves_no_request_behind() -> None:
    """Ctrl-C in the window: the server sees every client go."""
    paced = Paced()

    async def interrupt() -> None:
        task = asyncio.create_task(measurer.decode(decode()))
        while paced.generated < 20:  # noqa: ASYNC110 (it counts in another thread)
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with measuring(paced, timing=replace(QUICK, duration_s=30.0)) as (measurer, _):
        asyncio.run(interrupt())
        deadline = time.monotonic() + 5
        while paced.running and time.monotonic() < deadline:
            time.sleep(0.02)
        assert paced.running == 0
