"""What holds for every stream: no cut changes a record, no bytes break the reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.client import reader as reader_module
from pytest_llmperf.client import sse
from pytest_llmperf.client.chunk import read_leniently
from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.record import StreamRecord
from tests.client.driving import read

TEXTS = st.sampled_from(
    ["", "a", " the", "\n", '"', "\\", "\t\x00", "中", "🎉", "data: ", '"error":']
)
COUNTS = st.one_of(st.none(), st.integers(0, 30), st.sampled_from([-1, 1.5, "3", True, 10**30]))
CHANNEL = st.sampled_from(["content", "reasoning_content", "reasoning", "text", "tool", "none"])


def build_chunk(text: str, channel: str, count: Any, finish: Any, order: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if channel == "text":
        choice["text"] = text
    elif channel == "tool":
        choice["delta"] = {"tool_calls": [{"function": {"arguments": text}}]}
    else:
        choice["delta"] = {} if channel == "none" else {channel: text}
    chunk = {"id": "c", "created": 17, "choices": [choice], "model": "m"}
    if count is not None:
        chunk["usage"] = {"prompt_tokens": 5, "total_tokens": 9, "completion_tokens": count}
    return dict(reversed(chunk.items())) if order else chunk


CHUNKS = st.builds(
    build_chunk, TEXTS, CHANNEL, COUNTS, st.sampled_from([None, None, None, "stop"]), st.booleans()
)
DUMPS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda value: json.dumps(value, separators=(",", ":")),
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, indent=1).replace("\n", "\ndata: "),
]
EVENTS = st.one_of(
    st.builds(lambda chunk, dump: f"data: {dump(chunk)}", CHUNKS, st.sampled_from(DUMPS)),
    st.sampled_from(
        [": ping", ":", "data: [DONE]", "id: 3", "retry: 5", "event: message\ndata: {}"]
    ),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = draw(st.lists(EVENTS, max_size=12))
    return "".join(f"{event}\n\n" for event in events).replace("\n", end).encode()


def facts(record: StreamRecord) -> dict[str, Any]:
    """Everything about a record but its stamps."""
    names = StreamRecord.__slots__  # type: ignore[attr-defined]
    values = {name: getattr(record, name) for name in names}
    return {**values, "stamps": len(record.stamps)}


@given(bodies(), st.lists(st.integers(0, 2000), max_size=10))
@settings(max_examples=200, deadline=None)
def test_any_cut_of_a_stream_gives_the_same_record(body: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    assert facts(read(*pieces)) == facts(read(body))


@given(bodies())
@settings(max_examples=200, deadline=None)
def test_a_stream_read_leniently_has_the_same_record(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        typed = read(body)
        patch.setattr(reader_module, "read_chunk", read_leniently)
        assert facts(typed) == facts(read(body))


PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"data: ",
            b"\n\n",
            b"\r",
            b'{"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":',
            b"9" * 5000,
            b"NaN",
            b"}}\n\n",
            b'"usage":{"completion_tokens":3}}',
            b"[" * 3000,
            b'{"error":' * 400,
            b"event: error\n",
            b"\xef\xbb\xbf",
            b"data: [DONE]\n\n",
            b"\\",
            b'"',
            b"\xff\xfe",
            b"\x00",
        ]
    ),
)


def check_sane(record: StreamRecord) -> None:
    """A record may hold only what can be a measurement."""
    assert len(record.chunks) == len(record.stamps)
    assert len(record.tokens) in (0, len(record.stamps))
    for series in (record.stamps, record.tokens, record.chunks):
        assert series == sorted(series)  # type: ignore[type-var]
    for count in (record.completion_tokens, record.prompt_tokens, record.cached_tokens):
        assert count is None or (type(count) is int and 0 <= count <= 10**9)
    assert record.end in ("finished", "failed")
    assert (record.end == "failed") == bool(record.error)
    assert record.error.isprintable()


@given(st.lists(PIECES, max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_bytes_break_the_reader(pieces: list[bytes]) -> None:
    check_sane(read(*pieces))


@given(st.lists(st.one_of(PIECES, bodies()), max_size=8), st.sampled_from([200, 400, 500]))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_an_exchange(pieces: list[bytes], status: int) -> None:
    """Whatever comes, the request ends once, at the latest at its limit."""
    record = StreamRecord()
    exchange = Exchange(record, first_token_s=50.0, stall_s=50.0)
    exchange.sent(1.0)
    exchange.head(1.0, status)
    for i, piece in enumerate(pieces):
        exchange.body(2.0 + i, piece)
        exchange.check(2.0 + i)
    exchange.check(1000.0)
    assert exchange.ended
    check_sane(record)


def test_an_event_may_grow_too_large_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that the body's end leaves open is looked at only then."""
    monkeypatch.setattr(sse, "MAX_EVENT", 160)
    record = read(b"data: x\n", b"data: " + b"x" * 60)
    check_sane(record)
    assert "more than 4 MiB" in record.error
