"""Shapes: which chunks spare the JSON parser, and that they never change what is counted."""

from __future__ import annotations

import json
import time

import pytest

from pytest_llmperf.client.reader import _carried
from pytest_llmperf.client.shape import Shape, learn_shape

VLLM = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" upon"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}],"usage":{"prompt_tokens":38,"total_tokens":43,"completion_tokens":5,'
    b'"completion_tokens_details":null}}'
)
LLAMACPP = (
    b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" upon"}}],"created":17,'
    b'"id":"chatcmpl-1","model":"m","object":"chat.completion.chunk"}'
)
COMPLETIONS = (
    b'{"choices": [{"index": 0, "text": " upon", "finish_reason": null}], '
    b'"usage": {"completion_tokens": 5}}'
)
COUNT_FIRST = b'{"usage":{"completion_tokens":5,"x":1},"choices":[{"delta":{"content":" upon"}}]}'


def learn(data: bytes) -> Shape | None:
    return learn_shape(data, _carried)


@pytest.mark.parametrize(
    ("data", "count"), [(VLLM, 5), (LLAMACPP, None), (COMPLETIONS, 5)], ids=["v", "l", "c"]
)
def test_the_chunks_of_common_servers_have_a_shape(data: bytes, count: int | None) -> None:
    shape = learn(data)
    assert shape is not None
    assert shape.match(data) == (b" upon", count)
    other = (
        data.replace(b" upon", rb"\"a\" \u00e9\n")
        .replace(b":5,", b":128,")
        .replace(b": 5}", b": 128}")
    )
    assert shape.match(other) == (rb"\"a\" \u00e9\n", count and 128)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"finish_reason":null', b'"finish_reason":"stop"'),
        (b'"content"', b'"reasoning"'),
        (b'"logprobs":null', b'"logprobs":{}'),
        (b'"completion_tokens":5', b'"completion_tokens":-5'),
        (b'"completion_tokens":5', b'"completion_tokens":5.5'),
        (b'"completion_tokens":5', b'"completion_tokens":"5"'),
        (b'"completion_tokens":5', b'"completion_tokens":null'),
        (b'"completion_tokens":5', b'"completion_tokens":' + b"5" * 5000),
        (b'"completion_tokens":5', b'"completion_tokens":5,"error":"x"'),
        (b"null}}", b'null},"error":{"message":"x"}}'),
        (b"null}}", b"null}} "),
        (b'{"id"', b' {"id"'),
        (b" upon", rb" \x"),
        (b" upon", b' "'),
        (b" upon", b"\\"),
        (b" upon", b'a"},{"content":"b'),
    ],
)
def test_a_chunk_that_differs_in_anything_else_has_not_that_shape(old: bytes, new: bytes) -> None:
    shape = learn(VLLM)
    assert shape is not None
    changed = VLLM.replace(old, new)
    assert changed != VLLM
    assert shape.match(changed) is None


@pytest.mark.parametrize(
    "data",
    [
        COUNT_FIRST,  # the count would stay what it was
        VLLM.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        VLLM.replace(b'"content":" upon"', b'"content":"a","reasoning":"b"'),
        VLLM.replace(b'"content":" upon"', b'"content":null'),
        VLLM.replace(b'"usage"', b'"timings":{"cache_n":3},"usage"'),
        VLLM.replace(b'"usage"', b'"error":"x","usage"'),
        json.dumps({"choices": [{"delta": {"content": "a"}}] * 2}).encode(),
        VLLM.replace(b'_details":null', b'_details":"' + b"a" * 3000 + b'"'),
        b'{"content":"x","choices":[{"delta":{}}]}',
        b"[]",
        b"",
        b"\xff\xfe",
        b'{"content":"',
    ],
)
def test_a_chunk_that_carries_more_or_is_odd_teaches_no_shape(data: bytes) -> None:
    assert learn(data) is None


def test_a_chunk_made_to_be_slow_costs_little() -> None:
    """20,000 places where the text could be, none of which is: not 20,000 looks at the chunk."""
    decoys = b'"text":"",' * 20_000
    data = b'{"choices":[{"a":{' + decoys + b'"b":1},"delta":{"content":"x"}}]}'
    began = time.process_time()
    assert learn(data) is None
    assert time.process_time() - began < 2


def test_a_long_tail_is_not_compiled() -> None:
    """4 MiB after the count would take seconds, at the start of every stream."""
    data = VLLM.replace(b'_details":null', b'_details":"' + b"a" * 2**22 + b'"')
    began = time.process_time()
    assert learn(data) is None
    assert time.process_time() - began < 1
