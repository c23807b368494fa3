"""llama.cpp, from recorded answers of its real server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.llamacpp import LlamaCpp
from tests.engines.fake import capture, card_of, describe, make, run

SPLIT = {
    "/props": capture("llamacpp/get_props.txt"),
    "/slots": capture("llamacpp/get_slots.txt"),
    "/metrics": capture("llamacpp/get_metrics_during.txt"),
}


def test_e16_slots_limit_a_request_and_their_sum_is_unknown() -> None:
    """n_ctx is a slot's; the pool is between one and all of them, and the message says so."""
    info = describe(LlamaCpp, SPLIT, card_of("llamacpp/get_v1_models.txt"))
    assert info.engine == "llama.cpp"
    assert (info.max_model_len, info.max_num_seqs) == (4096, 4)
    assert info.kv_tokens is None
    assert "4,096" in info.kv_source
    assert "16,384" in info.kv_source
    assert "--llm-kv-tokens" in info.kv_source
    assert info.quantization == "Q4_1"
    assert info.version is None
    assert info.speculative is False
    assert info.prefix_cache is True
    assert not info.notes


def test_e16_a_shared_pool_looks_the_same_and_is_as_unknown() -> None:
    info = describe(
        LlamaCpp,
        {
            "/props": capture("llama-server-default/get_props.txt"),
            "/slots": capture("llama-server-default/get_slots.txt"),
        },
        card_of("llama-server-default/get_v1_models.txt"),
    )
    assert (info.max_model_len, info.max_num_seqs, info.kv_tokens) == (8192, 4, None)


def test_e16_one_slot_has_the_pool_to_itself() -> None:
    props = json.loads(SPLIT["/props"][1]) | {"total_slots": 1, "build_info": "b6000-abc"}
    info = describe(LlamaCpp, {"/props": json.dumps(props)})
    assert (info.kv_tokens, info.version) == (4096, "b6000-abc")


def test_gauges_under_load() -> None:
    gauges = run(make(LlamaCpp, SPLIT).gauges())
    assert gauges is not None
    assert (gauges.running, gauges.waiting) == (4, 3)
    assert gauges.generated_tokens is None, "it counts a request only when that has ended"
    assert gauges.prompt_tokens == gauges.prefix_queries == 2745 + 1706
    assert gauges.prefix_hits == 1706
    assert gauges.preemptions is None


def test_e17_kv_use_is_absent_where_it_was_removed() -> None:
    new = run(make(LlamaCpp, SPLIT).gauges())
    old = run(make(LlamaCpp, {"/metrics": "llamacpp:kv_cache_usage_ratio 0.5\n"}).gauges())
    assert new is not None
    assert old is not None
    assert (new.kv_use, old.kv_use) == (None, 0.5)


def test_e17_a_router_is_asked_with_the_model() -> None:
    answers = {
        "/props": {"role": "router"},
        "/metrics": (400, '{"error":{"message":"model name is missing from the request"}}'),
        "/props?model=org%2Fm": SPLIT["/props"],
        "/slots?model=org%2Fm": SPLIT["/slots"],
        "/metrics?model=org%2Fm": SPLIT["/metrics"],
    }
    engine = make(LlamaCpp, answers, Card("org/m"))

    async def go() -> Any:
        return await engine.describe(), await engine.gauges()

    info, gauges = run(go())
    assert info.max_num_seqs == 4
    assert gauges.running == 4


def test_without_metrics_the_busy_slots_are_counted() -> None:
    """`llama-server` has them off by default; the note tells the flag."""
    slots = json.dumps([{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}])
    off = (501, '{"error":{"code":501,"message":"This server does not support metrics endpoint"}}')
    engine = make(LlamaCpp, {"/props": SPLIT["/props"], "/slots": slots, "/metrics": off})

    async def go() -> Any:
        return await engine.describe(), await engine.gauges()

    info, gauges = run(go())
    assert "--metrics" in info.notes[0]
    assert (gauges.running, gauges.waiting) == (1, None)


@pytest.mark.parametrize(
    "answers", [{}, {"/props": (401, "{}")}, {"/props": "null", "/slots": "7"}]
)
def test_a_server_that_tells_nothing_is_described_all_the_same(answers: Any) -> None:
    info = describe(LlamaCpp, answers)
    assert (info.max_model_len, info.max_num_seqs, info.kv_tokens) == (None, None, None)


def test_chat_goes_through_the_template_before_the_tokenizer() -> None:
    engine = make(
        LlamaCpp,
        {
            "POST /apply-template": capture("llamacpp/apply_template.txt"),
            "POST /tokenize": lambda body: {"tokens": body["content"].split("<|im_start|>")},
        },
    )
    assert run(engine.count_tokens([{"role": "user", "content": "Hello"}])) == 4
    assert [path for path, _ in engine.api.posted] == ["/apply-template", "/tokenize"]
    assert engine.api.posted[1][1]["parse_special"] is True


def test_text_is_counted_by_the_tokenizer() -> None:
    engine = make(LlamaCpp, {"POST /tokenize": capture("llamacpp/tokenize.txt")})
    assert run(engine.count_tokens("Hello world, how are you?")) == 7


def test_an_empty_list_of_tokens_is_no_count() -> None:
    """What the server answers when it found no text in the request."""
    engine = make(LlamaCpp, {"POST /tokenize": capture("llamacpp/tokenize_chat.txt")})
    assert run(engine.count_tokens("Hello")) is None
