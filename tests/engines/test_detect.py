"""Engines are told by answers that only they give."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.detect import ENGINES, detect, engine_named
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from tests.engines.fake import FakeApi, capture, card_of, run


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("llamacpp", "llama.cpp"),
        ("tensorrt_llm", "tensorrt_llm"),
    ],
)
def test_the_owner_of_the_model_tells_without_a_request(owner: str, name: str) -> None:
    api = FakeApi({})
    assert run(detect(api, Card("m", owned_by=owner))).name == name
    assert not api.asked


@pytest.mark.parametrize("folder", ["vllm", "llamacpp", "llama-server-default"])
def test_recorded_model_cards_tell_their_engine(folder: str) -> None:
    card = card_of(f"{folder}/get_v1_models.txt")
    assert run(detect(FakeApi({}), card)).name in ("vllm", "llama.cpp")


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        ({"/props": capture("llamacpp/get_props.txt")}, "llama.cpp"),
        ({"/server_info": {"max_total_num_tokens": 1}}, "sglang"),
        ({"/get_server_info": {"max_total_num_tokens": 1}}, "sglang"),
        ({"/info": {"model_id": "m", "max_total_tokens": 8192}}, "tgi"),
        ({"/api/ps": {"models": []}}, "ollama"),
        ({"/api/v0/models": {"data": [{"id": "m", "state": "loaded"}]}}, "lmstudio"),
        ({"/metrics": capture("vllm/get_metrics_after.txt")}, "vllm"),
        ({"/metrics": "sglang:num_running_reqs 1\n"}, "sglang"),
        ({"/metrics": '[{"iterLatencyMS":7}]'}, "tensorrt_llm"),
        ({"/metrics": "trtllm_num_requests_running 0\n"}, "tensorrt_llm"),
        (
            {
                "POST /v1/chat/completions": capture(
                    "transformers-serve/chat_stream_ignore_eos_min.sse"
                )
            },
            "transformers",
        ),
    ],
)
def test_an_answer_only_one_engine_gives(answers: dict[str, Any], name: str) -> None:
    assert run(detect(FakeApi(answers), Card("m", owned_by="org"))).name == name


@pytest.mark.parametrize(
    "answers",
    [
        {},
        # a proxy that answers everything with a page, or refuses it
        dict.fromkeys(
            ("/props", "/info", "/server_info", "/metrics", "/api/ps"), "<html>hi</html>"
        ),
        dict.fromkeys(("/props", "/info", "/server_info", "/metrics", "/api/ps"), (401, "{}")),
        dict.fromkeys(("/props", "/info", "/metrics", "/api/ps"), "{}"),
        {"/api/v0/models": {"data": [None, 3]}},
        # a process's own metrics are anyone's
        {"/metrics": "process_start_time_seconds 1.7e9\nlitellm_requests_total 3\n"},
        {"/version": {"version": "1.0"}},
        dict.fromkeys(("/props", "/metrics", "POST /v1/chat/completions"), ServerUnusable("gone")),
    ],
)
def test_what_tells_nothing_is_a_plain_endpoint(answers: dict[str, Any]) -> None:
    assert run(detect(FakeApi(answers), Card("m", owned_by="openai"))).name == "openai"


@pytest.mark.parametrize("text", ["llama.cpp", "llamacpp", "llama-cpp", "LLAMA_CPP"])
def test_the_user_names_an_engine_in_any_spelling(text: str) -> None:
    assert engine_named(text).name == "llama.cpp"


def test_every_engine_can_be_named() -> None:
    assert [engine_named(engine.name) for engine in ENGINES] == list(ENGINES)
    assert engine_named("generic").name == "openai"


def test_an_engine_that_is_none_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--llm-engine.*'vlm'.*vllm.*llama\.cpp.*openai"):
        engine_named("vlm")
