"""Chunks: what servers send is read typed, what differs leniently, and both say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.client import chunk as chunk_module
from pytest_llmperf.client import reader as reader_module
from pytest_llmperf.client.chunk import (
    ODD,
    Chunk,
    ErrorSaid,
    NoChunk,
    Usage,
    read_chunk,
    read_leniently,
)
from tests.client.driving import read
from tests.client.events import DONE, STOP, choice, delta, event, usage

CAPTURES = sorted((Path(__file__).parent.parent / "data" / "captures").rglob("*.sse"))
STREAMS = [path for path in CAPTURES if b"data: {" in path.read_bytes()]
SGLANG = (
    b'{"id":"6e1","object":"chat.completion.chunk","created":1764,"model":"m","choices":[{"index":0'
    b',"delta":{"role":null,"content":" a b c","reasoning_content":null,"tool_calls":null},'
    b'"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":{"prompt_tokens":9,'
    b'"total_tokens":19,"completion_tokens":10,"prompt_tokens_details":null,"reasoning_tokens":0}}'
)
"""With a stream interval of ten."""
VLLM = (
    b'{"id":"c","choices":[{"index":0,"delta":{"content":" upon"},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":38,"completion_tokens":5,"prompt_tokens_details":null}}'
)


def says(data: bytes, reading: Any) -> Any:
    """What a reader of chunks makes of it, errors included."""
    try:
        found: Chunk = reading(data)
    except (ErrorSaid, NoChunk) as error:
        return type(error), str(error)
    counts = found.usage or Usage()
    prompt, made = counts.prompt_tokens_details, counts.completion_tokens_details
    return (
        found.id,
        [(c.said, c.reasoned, c.finish_reason) for c in found.choices],
        (found.usage is None, counts.prompt_tokens, counts.completion_tokens),
        prompt and prompt.cached_tokens,
        made is None,
        made and made.reasoning_tokens,
        found.timings and found.timings.cache_n,
    )


def is_typed(data: bytes) -> bool:
    """Whether the decoder alone could read it."""
    try:
        chunk_module._decode(data)
    except msgspec.DecodeError:
        return False
    return True


def chunks_of(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines()
    return [line[6:] for line in lines if line.startswith(b"data: {")]


@pytest.mark.parametrize("path", STREAMS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_captured_chunk_is_read_typed_and_says_the_same(path: Path) -> None:
    """All engines' captures: none of their chunks needs the slow parser, but for their errors."""
    for data in chunks_of(path):
        said = says(data, read_chunk)
        assert said == says(data, read_leniently)
        assert is_typed(data) or said[0] is ErrorSaid


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_captured_streams_have_the_same_record_either_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = path.read_bytes()
    typed = read(body)
    monkeypatch.setattr(reader_module, "read_chunk", read_leniently)
    assert read(body) == typed


def test_a_chunk_of_ten_tokens_from_sglang_is_read_typed() -> None:
    """Typed parsers elsewhere fail on its nulls and its counts of their own."""
    assert is_typed(SGLANG)
    (text,) = says(SGLANG, read_chunk)[1]
    assert text == (" a b c", False, None)
    assert says(SGLANG, read_chunk)[2] == (False, 9, 10)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"c"', b'"d"'),
        (b'{"id"', b'{"created":1.5,"timings":{"cache_n":3,"x":[{}]},"id"'),
        (b'{"content"', b'{"tool_calls":[],"content"'),
        (b" upon", rb"\u00e9\"\n"),
        (b":5,", b":123456,"),
    ],
)
def test_changing_fields_do_not_make_a_chunk_slow(old: bytes, new: bytes) -> None:
    data = VLLM.replace(old, new)
    assert data != VLLM
    assert is_typed(data)
    assert says(data, read_chunk) == says(data, read_leniently)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 12),
        st.sampled_from(["", "a", "7", "é", "error", "stop", 1.5, 10**12, float("nan")]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["text", "content", "message", "x"]), inner, max_size=3),
    ),
    max_leaves=5,
)


def objects(**fields: Any) -> st.SearchStrategy[Any]:
    """Objects with some of these fields, each mostly of its type; now and then something else."""
    mixed = {name: st.one_of(field, field, VALUES) for name, field in fields.items()}
    whole: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional=mixed)
    return st.one_of(whole, whole, whole, VALUES)


TEXT = st.one_of(st.none(), st.text(max_size=4))
COUNT = st.one_of(st.none(), st.integers(0, 99))
CHUNKS = objects(
    id=TEXT,
    choices=st.lists(
        objects(
            delta=objects(
                content=TEXT,
                reasoning_content=TEXT,
                reasoning=TEXT,
                refusal=TEXT,
                tool_calls=st.just([]),
                function_call=st.none(),
                reasoning_details=st.just([]),
            ),
            text=TEXT,
            finish_reason=st.sampled_from([None, "stop", ""]),
        ),
        max_size=2,
    ),
    usage=objects(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        prompt_tokens_details=objects(cached_tokens=COUNT),
        completion_tokens_details=objects(reasoning_tokens=COUNT),
    ),
    timings=objects(cache_n=COUNT),
    object=st.sampled_from(["chat.completion.chunk", "error"]),
    error=st.none(),
    detail=st.none(),
)


@given(CHUNKS, st.booleans())
@settings(max_examples=1500, deadline=None)
def test_typed_and_lenient_reading_agree(value: Any, ascii_only: bool) -> None:
    """Whatever types the fields have: the same texts, counts and errors."""
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert says(data, read_chunk) == says(data, read_leniently)


@given(st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_chunk_are_said_to_be_none(data: bytes) -> None:
    assert says(data, read_chunk) == says(data, read_leniently)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (choice(delta=None, finish_reason=None), ""),
        (choice(finish_reason=None), ""),
        (delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab"),
        (delta(content=5), ""),
        (choice(delta="x", text="y"), "y"),
    ],
)
def test_a_field_of_another_type_never_fails_the_stream(data: bytes, text: str) -> None:
    record = read(delta(content="one "), data, STOP, usage(2), DONE)
    assert (record.end, record.tail) == ("finished", "one " + text)


def test_a_count_as_text_is_odd_and_left_out() -> None:
    assert says(VLLM.replace(b":5,", b':"5",'), read_chunk)[2] == (False, 38, ODD)
    record = read(delta(content="one "), usage("2"), STOP, DONE)
    assert (record.end, record.usage_odd, record.completion_tokens) == ("finished", True, None)


def test_an_error_among_usual_fields_is_an_error() -> None:
    """Also where ``error`` itself is empty, but the object says so."""
    body = event({"object": "error", "choices": [], "message": "out of memory"})
    record = read(delta(content="one "), body)
    assert (record.end, record.error) == ("failed", "out of memory")


def test_a_chunk_made_to_be_slow_is_refused_in_no_time() -> None:
    """Nested beyond what can be parsed."""
    record = read(b'data: {"choices":' + b"[" * 200_000 + b"\n\n")
    assert record.end == "failed"
