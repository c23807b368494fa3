"""What a measured request asks for, and how it gives way."""

from __future__ import annotations

import pytest

from pytest_llmperf.measure.prompts import Prompt
from pytest_llmperf.measure.requests import RequestForm, named_limit, too_long
from pytest_llmperf.model.settings import Workload

PROMPT = Prompt(8, 8, "hello")

VLLM_TOO_LONG = (
    "HTTP 400: This model's maximum context length is 4096 tokens. However, your prompt contains at"
    " least 4097 input tokens, which exceeds this limit even without any output tokens."
)
LLAMACPP_TOO_LONG = (
    "HTTP 400: request (60031 tokens) exceeds the available context size (4096 tokens), try"
    " increasing it"
)
VLLM_MAX_TOKENS = (
    "HTTP 400: max_tokens=9999999 cannot be greater than max_model_len=4096. Please request fewer"
    " output tokens."
)
OLMO_MAX_TOKENS = "max_tokens=131072 cannot be greater than max_model_len=max_total_tokens=40960"


def test_sampling_is_explicit_and_nothing_stops_early() -> None:
    body = RequestForm("m", Workload(max_tokens=7)).body(PROMPT, 7)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_extra_fields_win() -> None:
    form = RequestForm("m", Workload(extra_body={"temperature": 0.2, "top_k": 5}))
    body = form.body(PROMPT, 1)
    assert (body["temperature"], body["top_k"]) == (0.2, 5)


@pytest.mark.parametrize(
    ("refusals", "usage_mode", "ignore_eos"),
    [
        (["Extra inputs are not permitted, field: 'stream_options.continuous_usage_stats'"],
         "final", True),
        (["unknown field continuous_usage_stats", "unknown field stream_options"], "none", True),
        (["Unexpected fields in the request: {'ignore_eos', 'min_tokens'}"], "continuous", False),
        (["Unknown parameter"], "final", True),
        (["Unknown parameter", "Unknown parameter"], "final", False),
        (["Unknown parameter"] * 3, "none", False),
    ],
)  # fmt: skip
def test_b10_a_rejected_field_is_left_out_from_then_on(
    refusals: list[str], usage_mode: str, ignore_eos: bool
) -> None:
    form = RequestForm("m", Workload())
    for words in refusals:
        assert form.give_way(400, words)
    assert (form.usage_mode, form.ignore_eos) == (usage_mode, ignore_eos)
    body = form.body(PROMPT, 1)
    assert ("ignore_eos" in body) == ignore_eos
    assert ("stream_options" in body) == (usage_mode != "none")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, VLLM_TOO_LONG),
        (400, LLAMACPP_TOO_LONG),
        (401, "unexpected key"),
        (429, "too many requests"),
        (400, "the model does not exist"),
        (500, "unknown error"),
    ],
)
def test_other_refusals_change_nothing(status: int, words: str) -> None:
    form = RequestForm("m", Workload())
    assert not form.give_way(status, words)
    assert form.body(PROMPT, 1) == RequestForm("m", Workload()).body(PROMPT, 1)


def test_giving_way_comes_to_an_end() -> None:
    form = RequestForm("m", Workload())
    given = [form.give_way(422, "unexpected field") for _ in range(5)]
    assert given == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (VLLM_TOO_LONG, 4096),
        (LLAMACPP_TOO_LONG, 4096),
        (VLLM_MAX_TOKENS, 4096),
        (OLMO_MAX_TOKENS, 40960),
        ("`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000 inputs tokens", 2048),
    ],
)
def test_a_refusal_for_length_names_its_limit(words: str, limit: int) -> None:
    assert named_limit(words) == limit


@pytest.mark.parametrize(
    "words", [VLLM_TOO_LONG, LLAMACPP_TOO_LONG, VLLM_MAX_TOKENS, OLMO_MAX_TOKENS]
)
def test_a_refusal_for_length_is_known_as_one(words: str) -> None:
    assert too_long(words)


def test_other_words_are_no_refusal_for_length() -> None:
    assert not too_long("rate limit exceeded")
    assert not too_long("model not found")
