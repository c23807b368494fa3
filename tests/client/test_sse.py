"""The event grammar: cutting, line ends, fields, limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.client import sse
from pytest_llmperf.client.sse import EventParser, EventTooLarge

Events = list[tuple[bytes, bytes]]


def parse(*pieces: bytes) -> Events:
    events: Events = []
    parser = EventParser(lambda kind, data: events.append((kind, data)))
    for piece in pieces:
        parser.feed(piece)
    parser.close()
    return events


@pytest.mark.parametrize(
    ("body", "events"),
    [
        # the examples of the specification
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [(b"", b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first\nid: 1\n\ndata:second event\nid\n\ndata:  third\n\n",
            [(b"", b"first"), (b"", b"second event"), (b"", b" third")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [(b"", b""), (b"", b"\n")]),
        (b"data:test\n\ndata: test\n\n", [(b"", b"test")] * 2),
        # line ends, alone and mixed
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        (b"data: a\r\n\rdata: b\n\r\n", [(b"", b"a"), (b"", b"b")]),
        # a type holds for its own event only, data or not
        (b"event: x\ndata: 1\n\ndata: 2\n\n", [(b"x", b"1"), (b"", b"2")]),
        (b"event: x\n\ndata: 2\n\n", [(b"", b"2")]),
        (b"data: 1\nevent: late\n\n", [(b"late", b"1")]),
        # one byte order mark, at the very start
        (b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n", [(b"", b"1")]),
        (b"\xef\xbb\xbf\ndata: 1\n\n", [(b"", b"1")]),
        # names are compared whole, and with case
        (b"Data: 1\ndatax: 2\n data: 3\ndata : 4\n\n", []),
        # an event the stream ends in is none
        (b"data: 1\n\ndata: 2\n", [(b"", b"1")]),
        (b"data: 1\n\ndata: 2", [(b"", b"1")]),
        (b"", []),
    ],
)
def test_events_of_a_body_however_it_is_cut(body: bytes, events: Events) -> None:
    assert parse(body) == events
    assert parse(*(body[i : i + 1] for i in range(len(body)))) == events
    for cut in range(len(body)):
        assert parse(body[:cut], body[cut:]) == events


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"event: e",
        b"id: 1",
        b":c",
        b":",
        b"",
        b"",
        b"junk",
        b"\xff",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 80), max_size=8))
def test_any_cut_of_any_lines_gives_the_same_events(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    body = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    assert parse(*pieces) == parse(body)


def test_one_end_of_line_in_two_reads_is_one() -> None:
    assert parse(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [(b"", b"1\n2")]
    assert parse(b"data: 1\r", b"", b"\n\n") == [(b"", b"1")]


@pytest.mark.parametrize(
    "line", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n", b"data:\n", b"data: x\n"]
)
def test_memory_is_bounded(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without end, and an event without end."""
    monkeypatch.setattr(sse, "MAX_EVENT", 100_000)
    parser = EventParser(lambda kind, data: None)

    def flood() -> None:
        for _ in range(100_000):
            parser.feed(line)

    with pytest.raises(EventTooLarge):
        flood()


def test_lines_that_are_no_field_are_kept_up_to_a_limit() -> None:
    parser = EventParser(lambda kind, data: None)
    for _ in range(1000):
        parser.feed(b'{"error": "x"}\n')
    assert parser.stray.startswith(b'{"error": "x"}\n')
    assert len(parser.stray) <= sse.MAX_STRAY + 1
