"""What gateways put between chunks: the true count, or a failed request, never another count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.client.record import StreamRecord
from tests.client.driving import drive, read, serving
from tests.client.events import DONE, ROLE, STOP, choice, counted, delta, event, usage, words

HEARTBEATS = [b'data: ""\n\n', b"data:\n\n", b"data: {}\n\n", b"data: null\n\n", b": ping\n\n"]
REWRAPPED = b"data: : PROCESSING\n\n"
BROKEN = b'data: {"choices":[{"delta":{"cont\n\n'


@pytest.mark.parametrize("beat", HEARTBEATS)
def test_a_heartbeat_is_no_token_and_no_failure(beat: bytes, transport: Any) -> None:
    """Between any two chunks, and before the first; TTFT is that of the first text."""
    body = [beat, ROLE, beat, *(part for word in words(5) for part in (word, beat)), STOP, beat]
    (record,) = drive(serving(*body, usage(5), beat, DONE), transport=transport)
    assert (record.end, record.error) == ("finished", "")
    assert (record.chunks[-1], record.completion_tokens) == (5, 5)
    assert (record.malformed, record.rewrapped) == (0, 0)


def test_a_comment_sent_as_data_is_counted_and_left_out(transport: Any) -> None:
    """As many as there were while the server was busy with the prompt: none can be a chunk."""
    (record,) = drive(
        serving(*[REWRAPPED] * 20, *words(5), STOP, usage(5), DONE), transport=transport
    )
    assert (record.end, record.error) == ("finished", "")
    assert (record.chunks[-1], record.rewrapped, record.malformed) == (5, 20, 0)


def test_a_malformed_frame_in_a_hundred_leaves_the_count_whole() -> None:
    chunks = [counted(f"w{i} ", i + 1) for i in range(150)]
    chunks[70:71] = [BROKEN]
    record = read(*chunks, counted("", 150, "stop"), DONE)
    assert (record.end, record.error, record.malformed) == ("finished", "", 1)
    assert (record.tokens[-1], record.completion_tokens) == (150, 150)


@pytest.mark.parametrize(
    "body",
    [
        [*words(60), BROKEN, STOP, usage(61), DONE],
        [*words(150), BROKEN, STOP, DONE],
        [*words(150), STOP, usage(150), BROKEN, DONE],
        [*(counted(f"w{i}", i + 1) for i in range(150)), BROKEN, DONE],
    ],
    ids=["more than 1 %", "no count", "after the count", "no end"],
)
def test_a_malformed_frame_that_may_spoil_the_count_fails_the_stream(body: list[bytes]) -> None:
    record = read(*body)
    assert record.end == "failed"
    assert "malformed" in record.error
    assert "no JSON object" in record.error


def test_usage_in_a_last_chunk_whose_choice_has_no_delta() -> None:
    last = event(
        {
            "choices": [{"index": 0, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3},
        }
    )
    record = read(*words(3), last, DONE)
    assert (record.end, record.completion_tokens, record.chunks[-1]) == ("finished", 3, 3)


def test_usage_after_the_end_beside_a_choice_in_a_frame_of_its_own(transport: Any) -> None:
    """50 ms late: it is no arrival, and its count is the total."""
    late = event(
        {
            "choices": [{"index": 0, "delta": {}, "finish_reason": None}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 7},
        }
    )
    (record,) = drive(serving(*words(3), STOP, 0.05, late, DONE), transport=transport)
    assert (record.end, record.completion_tokens, len(record.stamps)) == ("finished", 7, 3)


def test_content_in_parts_and_no_delta_at_all() -> None:
    parts = delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    record = read(ROLE, parts, choice(delta=None, finish_reason=None), parts, STOP, usage(4), DONE)
    assert (record.end, record.tail, record.chunks[-1]) == ("finished", "abab", 2)
    assert record.completion_tokens == 4


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """A stream's true count, and its frames: valid, with heartbeats, comments sent as data, frames
    cut in two, broken, repeated or swapped, and perhaps cut off."""
    sizes = draw(st.lists(st.integers(1, 10), min_size=1, max_size=30))
    repeat = draw(st.sampled_from([1, 1, 8]))
    sizes = sizes * repeat
    continuous = draw(st.booleans())
    made, frames = 0, [ROLE]
    for size in sizes:
        made += size
        frames.append(counted("x" * size, made) if continuous else delta(content="x" * size))
    frames += [STOP, usage(made)] if draw(st.booleans()) or not continuous else [STOP]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(frames) - 1))
        kind = draw(st.sampled_from(["beat", "comment", "split", "break", "repeat", "swap"]))
        frame = frames[at]
        if kind == "beat":
            frames.insert(at, draw(st.sampled_from(HEARTBEATS)))
        elif kind == "comment":
            frames.insert(at, REWRAPPED)
        elif kind == "split":
            half = len(frame) // 2
            frames[at : at + 1] = [frame[:half] + b"\n\n", b"data: " + frame[half:]]
        elif kind == "break":
            frames[at] = frame[: len(frame) // 2] + b"\n\n"
        elif kind == "repeat":
            frames.insert(at, frame)
        elif at and STOP not in frames[at - 1 : at + 1]:
            # a stream that is cut after an end which came too early looks whole
            frames[at - 1], frames[at] = frame, frames[at - 1]
    frames.append(DONE)
    if draw(st.booleans()):
        frames = frames[: draw(st.integers(0, len(frames)))]
    return made, frames


@given(streams())
@settings(max_examples=1000, deadline=None)
def test_mixed_frames_give_the_true_count_or_a_failure(stream: tuple[int, list[bytes]]) -> None:
    made, frames = stream
    check_count(read(*frames), made)


def check_count(record: StreamRecord, made: int) -> None:
    """A finished request that tells its total tells the true one."""
    if record.end == "finished" and record.completion_tokens is not None:
        assert record.completion_tokens == made
        if record.tokens:
            assert record.tokens[-1] == made
    else:
        assert record.end == "failed" or record.usage_seen is None, json.dumps(record.error)
