"""Cases A: framing and grammar of the stream, against a server that sends those bytes."""

from __future__ import annotations

import pytest

from tests.client.driving import BODY, answering, drive, read, serving
from tests.client.events import DONE, ROLE, STOP, choice, counted, delta, event, usage, words
from tests.support.scripted import Reply


def squeeze(body: bytes) -> bytes:
    """The same body with no space after a colon of the grammar."""
    return body.replace(b"data: ", b"data:")


def test_a1_data_without_a_space_is_read(transport: str) -> None:
    body = squeeze(b"".join([ROLE, *words(3), STOP, DONE]))
    (record,) = drive(serving(body), transport=transport)
    assert (record.end, len(record.stamps), record.done) == ("finished", 3, True)
    assert record.tail == "w0 w1 w2 "


def test_a1_only_one_space_is_taken_off() -> None:
    record = read(b"data:  [DONE]\n\n")
    assert record.done, "white space around the end marker is no content"


@pytest.mark.parametrize("comment", [b": OPENROUTER PROCESSING\n\n", b":\n\n", b":\r\n\r\n"])
def test_a2_comments_start_no_clock_and_spoil_nothing(comment: bytes, transport: str) -> None:
    handler = serving(comment * 3, 0.15, *words(2), comment, STOP, comment, DONE)
    (record,) = drive(handler, transport=transport)
    assert (record.end, len(record.stamps)) == ("finished", 2)
    assert record.first_token_at is not None
    assert record.sent_at is not None
    assert record.first_token_at - record.sent_at >= 0.15


def test_a2_numbers_in_a_trailing_comment_are_not_counts() -> None:
    record = read(*words(2), STOP, b": x-omniroute-tokens-out=37\n", DONE)
    assert (record.end, record.completion_tokens, record.usage_seen) == ("finished", None, None)


def test_a2_keep_alives_hold_off_the_idle_limit_but_not_the_token_limit(transport: str) -> None:
    """Comments for 0.6 s: an idle limit of 0.3 s is not reached, a token limit of 0.4 s is."""
    handler = serving(words(1)[0], *[0.05, b": ping\n\n"] * 12, *words(1), STOP, DONE)
    (quiet,) = drive(handler, transport=transport, idle_s=0.3)
    assert quiet.end == "finished"
    (stalled,) = drive(handler, transport=transport, idle_s=0.3, stall_s=0.4)
    assert stalled.end == "failed"
    assert "no token for 0.4 s" in stalled.error
    assert "keep-alives still come" in stalled.error


def test_a2_silence_reaches_the_idle_limit(transport: str) -> None:
    (record,) = drive(serving(words(1)[0], 1.0, STOP, DONE), transport=transport, idle_s=0.2)
    assert (record.end, record.error) == ("failed", "no byte for 0.2 s")


def test_a4_control_only_events_are_not_dispatched(transport: str) -> None:
    body = [b"retry: 1000\n\n", b"id: 7\n" + words(1)[0], b": ping\n\n", b"id: 8\n\n", b"\n\n"]
    (record,) = drive(serving(*body, b"event: ping\n\n", STOP, DONE), transport=transport)
    assert (record.end, len(record.stamps)) == ("finished", 1)


def test_a6_a_character_may_be_split_over_two_reads(transport: str) -> None:
    body = event({"choices": [{"index": 0, "delta": {"content": "X"}}]}).replace(
        b"X", "中🎉".encode()
    )
    cut = body.index("中".encode()) + 1
    handler = serving(body[:cut], 0.05, body[cut : cut + 4], 0.05, body[cut + 4 :], STOP, DONE)
    (record,) = drive(handler, transport=transport)
    assert (record.end, record.tail) == ("finished", "中🎉")


@pytest.mark.parametrize("size", [1, 3, 7, 64, 10**6])
def test_a8_counts_do_not_depend_on_the_cut(size: int, transport: str) -> None:
    body = b"".join([ROLE, *(counted(f"w{i} ", i) for i in range(1, 9)), STOP, DONE])
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    (record,) = drive(serving(*pieces), transport=transport)
    assert record.end == "finished"
    assert record.tokens == record.chunks == list(range(1, 9))
    assert len(record.stamps) == 8


def test_a8_events_of_one_read_share_its_stamp() -> None:
    record = read(b"".join(words(4)), words(1)[0], STOP + DONE)
    assert record.stamps == [0.1] * 4 + [0.2]


def test_a9_an_end_without_done_is_fine_after_a_finish_reason(transport: str) -> None:
    (record,) = drive(serving(*words(2), STOP), transport=transport)
    assert (record.end, record.done, record.finish_reason) == ("finished", False, "stop")


def test_a9_an_end_without_finish_reason_is_truncation(transport: str) -> None:
    (record,) = drive(serving(*words(2)), transport=transport)
    assert record.end == "failed"
    assert "truncated" in record.error


def test_a9_a_body_that_ends_with_the_connection_is_judged_alike(transport: str) -> None:
    async def answer(reply: Reply, *events: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        await reply.raw(head + b"".join(events))
        reply.close()

    (whole,) = drive(answering(lambda reply: answer(reply, *words(2), STOP)), transport=transport)
    assert whole.end == "finished"
    (cut,) = drive(answering(lambda reply: answer(reply, *words(2))), transport=transport)
    assert (cut.end, len(cut.stamps)) == ("failed", 2)


def test_a9_an_unfinished_chunked_body_is_a_failure(transport: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.start_stream()
        await reply.send(b"".join(words(2)))
        reply.abort()

    (record,) = drive(answering(answer), transport=transport)
    assert record.end == "failed"
    assert record.error


PLAIN_ERROR = b'{"error":"Input validation error: too long","error_type":"validation"}'


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n"])
def test_a9_a_plain_json_body_is_an_error(kind: str, ending: bytes, transport: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.respond(200, PLAIN_ERROR + ending, kind)

    (record,) = drive(answering(answer), transport=transport)
    assert record.end == "failed"
    assert "Input validation error: too long" in record.error


def test_a9_a_whole_completion_instead_of_a_stream_is_an_error() -> None:
    record = read(b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}')
    assert record.end == "failed"
    assert "not an event stream" in record.error


VLLM_ERROR = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}


@pytest.mark.parametrize(
    ("payload", "words_of_it"),
    [
        (VLLM_ERROR, "EngineCore encountered an issue"),
        ({"error": {"message": "TimeoutError", "type": "GatewayTimeout", "code": 504}}, "Timeout"),
        ({"error": "boom"}, "boom"),
        ({"error": "Input validation error: x", "error_type": "validation"}, "validation error"),
        ({"object": "error", "message": "got -186.", "type": "BadRequestError"}, "got -186."),
        ({"error": {"code": 500, "message": "x", "type": "t"}, "choices": []}, "x"),
        ({"detail": "Internal Server Error"}, "Internal Server Error"),
    ],
)
@pytest.mark.parametrize("good", [0, 5])
def test_a10_an_error_in_the_stream_fails_the_request(
    payload: dict[str, object], words_of_it: str, good: int
) -> None:
    record = read(*words(good), event(payload), STOP, DONE)
    assert record.end == "failed"
    assert words_of_it in record.error
    assert len(record.stamps) == good


def test_a10_end_to_end(transport: str) -> None:
    (record,) = drive(serving(*words(5), event(VLLM_ERROR), DONE), transport=transport)
    assert record.end == "failed"
    assert record.error == "EngineCore encountered an issue. See stack trace."


def test_a10_an_error_of_null_is_none() -> None:
    body = event({"error": None, "choices": [{"index": 0, "delta": {"content": "x"}}]})
    assert read(body, STOP, DONE).end == "finished"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a10_a_finish_reason_that_is_a_failure(reason: str) -> None:
    record = read(*words(2), choice(delta={}, finish_reason=reason), DONE)
    assert (record.end, record.finish_reason) == ("failed", reason)


def test_a11_an_error_event_fails_the_request(transport: str) -> None:
    body = b'event: error\ndata: {"message":"upstream died"}\n\n'
    (record,) = drive(serving(*words(2), body, STOP, DONE), transport=transport)
    assert (record.end, record.error) == ("failed", "upstream died")


def test_a11_an_error_field_fails_the_request() -> None:
    """Older llama.cpp servers send the error under a field name of its own."""
    record = read(*words(2), b'error: {"code":500,"message":"slot unavailable"}\n\n')
    assert (record.end, record.error) == ("failed", "slot unavailable")


@pytest.mark.parametrize(
    "body",
    [
        choice(delta={}, finish_reason=None),
        choice(delta=None),
        choice(delta={"content": None}),
        choice(delta="x"),
        choice(),
        event({"choices": []}),
        event({"choices": None}),
        event({"choices": {}}),
        event({"choices": [None, 1, "x"]}),
        event({"usage": {"prompt_tokens": 3, "completion_tokens": 0}}),
        event({}),
        delta(tool_calls=None),
        delta(tool_calls=[]),
        delta(tool_calls=[{"index": 0, "function": {"name": None, "arguments": ""}}]),
        event({"choices": [{"text": ""}], "prompt_progress": {"total": 237, "processed": 128}}),
    ],
)
def test_a12_chunks_without_text_neither_crash_nor_count(body: bytes) -> None:
    record = read(body, words(1)[0], body, STOP, body, DONE)
    assert (record.end, record.stamps) == ("finished", [0.2])


def test_a12_usage_is_read_from_a_chunk_without_choices(transport: str) -> None:
    last = event({"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}})
    (record,) = drive(serving(*words(2), STOP, last, DONE), transport=transport)
    assert (record.prompt_tokens, record.completion_tokens) == (9, 2)
    assert record.usage_seen == "final"
    assert len(record.stamps) == 2
    assert record.tokens == []


def test_an_event_that_is_no_json_fails_the_request() -> None:
    for body in (b"data: hello\n\n", b'data: {"choices":\n\n', b"data: 7\n\n", b"data: NaN\n\n"):
        record = read(words(1)[0], body, STOP, DONE)
        assert record.end == "failed"
        assert "no JSON object" in record.error


def test_the_request_is_sent_as_given(transport: str) -> None:
    seen: list[bytes] = []

    async def handler(request: object, reply: Reply) -> None:
        seen.append(request.body)  # type: ignore[attr-defined]
        await reply.respond(400, {"error": {"message": "no"}})

    (record,) = drive(handler, transport=transport)
    assert seen == [BODY]
    assert (record.status, record.error) == (400, "HTTP 400: no")


def test_usage_helper_is_not_generation() -> None:
    """A stream of nothing but usage has no token."""
    record = read(usage(5), STOP, DONE)
    assert record.end == "failed"
    assert "without a single token" in record.error
