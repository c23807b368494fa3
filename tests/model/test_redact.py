"""No secret passes, and nothing else is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.model.redact import MARK, redact, redact_all

SECRET = "q7Zp-K2mV9xW4tLr"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key {} --port 8000",
        "vllm serve m --api-key={}",
        "vllm serve m --api-key '{} with a blank'",
        'vllm serve m --api-key "{}"',
        "env HF_TOKEN={} VLLM_API_KEY={} vllm serve m",
        "llama-server --hf-token {} -m x",
        "--ssl-password {}",
        "http://user:{}@gpu1:8000/v1",
        "http://gpu1:8000/v1?api_key={}&x=1",
        "Authorization: Bearer {}",
        "authorization: Basic {}",
        "{{'Authorization': 'Bearer {}'}}",
        "X-Api-Key: {}",
        '{{"api_key": "{}", "model": "m"}}',
        "the key sk-{} is wrong",
        "hf_{} was refused",
        "eyJhbGciOiJIUzI1NiJ9.{}.c2ln",
        "invalid bearer {}",
    ],
)
def test_a_secret_is_removed_in_every_common_form(text: str) -> None:
    shown = redact(text.replace("{}", SECRET).replace("{{", "{").replace("}}", "}"))
    assert SECRET not in shown
    assert MARK in shown


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --tokenizer-mode deepseek_v41 --max-num-batched-tokens 8192 --port 8000",
        '--speculative-config \'{"method":"dspark","num_speculative_tokens":7}\'',
        "total_tok_s: 769.0, tokens per step 2.8, max_tokens=4096",
        "http://gpu1:8000/v1/chat/completions",
        "2 of 8 requests failed: HTTP 500: out of memory",
        "vllm serve m --api-key <redacted> --port 8000",
        "HTTP 401: the bearer of a key",
        "reach me at someone@example.org",
    ],
)
def test_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_known_secrets_go_wherever_they_stand() -> None:
    assert redact("the server said: bad key hunter2!", ["hunter2"]) == (
        f"the server said: bad key {MARK}!"
    )


def test_what_surrounds_a_secret_stays() -> None:
    command = f"env A=1 vllm serve m --api-key {SECRET} --port 8000"
    assert redact(command) == f"env A=1 vllm serve m --api-key {MARK} --port 8000"


@given(st.text(alphabet="-_=:@/ \"'{}&?apikeytokenBearersk0123456789<>", max_size=60))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_every_string_of_a_nested_document_is_redacted() -> None:
    document = {"a": [{"b": f"--api-key {SECRET}"}], "n": 1.5, "none": None}
    assert redact_all(document) == {"a": [{"b": f"--api-key {MARK}"}], "n": 1.5, "none": None}
