"""Cases C that are the client's: when the clock starts, stops, and what must not be in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.settings import Connection
from tests.client.driving import PATH, answering, drive, read, send, serving
from tests.client.events import DONE, ROLE, STOP, counted, delta, usage, words
from tests.support.scripted import Reply, Request, ScriptedServer

VLLM_ROLE = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null},'
    b'"finish_reason":null}],"model":"M","object":"chat.completion.chunk","id":"c","created":1,'
    b'"usage":null}\n\n'
)


def ttft(record: StreamRecord) -> float:
    assert record.sent_at is not None
    assert record.first_token_at is not None
    return record.first_token_at - record.sent_at


@pytest.mark.parametrize(
    "first",
    [VLLM_ROLE, ROLE, delta(role="assistant", content=""), delta(role="assistant"), b": hi\n\n"],
)
def test_c1_the_first_token_is_a_text_not_a_role(first: bytes) -> None:
    record = read(first, first, words(1)[0], STOP, DONE)
    assert record.stamps == [0.3]


def test_c1_end_to_end(transport: str) -> None:
    (record,) = drive(serving(VLLM_ROLE, 0.3, *words(2), STOP, DONE), transport=transport)
    assert 0.3 <= ttft(record) < 0.6
    assert record.headers_at is not None
    assert record.sent_at is not None
    assert record.headers_at - record.sent_at < 0.25


def test_c2_no_token_no_time(transport: str) -> None:
    (record,) = drive(serving(ROLE, STOP, DONE), transport=transport)
    assert (record.first_token_at, record.end) == (None, "failed")


def test_c4_decode_ends_with_the_last_token_not_with_usage(transport: str) -> None:
    handler = serving(counted("a", 1), 0.1, counted("b", 2), 0.4, STOP, usage(2), DONE)
    (record,) = drive(handler, transport=transport)
    assert record.ended_at is not None
    assert 0.08 <= record.stamps[-1] - record.stamps[0] < 0.35
    assert record.ended_at - record.stamps[-1] >= 0.38


def test_c5_stamps_are_taken_at_arrival_not_after_the_work() -> None:
    """A slow consumer of tokens does not move the stamps of those in the same read."""

    async def main(url: str) -> StreamRecord:
        client = StreamClient(Connection(url))
        record = StreamRecord()
        await send(client, record, on_arrival=lambda at: time.sleep(0.02))
        await client.aclose()
        return record

    async def answer(reply: Reply) -> None:
        await reply.start_stream()
        framed = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in [*words(10), STOP, DONE])
        await reply.raw(framed)
        await reply.end_stream()

    with ScriptedServer({PATH: answering(answer)}) as server:
        record = asyncio.run(main(server.url))
    assert len(record.stamps) == 10
    assert len(set(record.stamps)) == 1


@pytest.mark.parametrize("count", [0, 1])
def test_c6_one_token_or_none_by_usage_gives_no_interval(count: int) -> None:
    record = read(counted("x", count), STOP, usage(count), DONE)
    assert len(record.stamps) == 1
    assert record.completion_tokens == (count or None)


def test_c11_streams_are_not_limited_by_the_client(transport: str) -> None:
    """128 at once: the server sees all of them open, and none waits for another's connection."""
    full: list[bool] = []

    async def handler(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        for _ in range(100):
            if full or server.open_now >= 128:
                full.append(True)
                break
            await asyncio.sleep(0.05)
        await reply.send(b"".join([*words(1), STOP, DONE]))
        await reply.end_stream()

    async def main() -> list[StreamRecord]:
        client = StreamClient(Connection(server.url), transport=transport)
        records = [StreamRecord() for _ in range(128)]
        await client.open(128)
        await asyncio.gather(*(send(client, record) for record in records))
        await client.aclose()
        return records

    with ScriptedServer({PATH: handler}) as server:
        records = asyncio.run(main())
        assert server.open_peak == 128
    assert {record.end for record in records} == {"finished"}


def test_c17_connecting_is_not_in_the_clock() -> None:
    """A server whose handshake takes long: the request is stamped after it."""

    async def main() -> StreamRecord:
        delay = 0.3

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = b"".join([*words(1), STOP, DONE])
            await reader.readuntil(b"}")
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = StreamClient(Connection(f"http://127.0.0.1:{port}"))
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def slow_connect(*args: object, **kwargs: object) -> object:
            await asyncio.sleep(delay)
            return await connect(*args, **kwargs)  # type: ignore[call-overload]

        loop.create_connection = slow_connect  # type: ignore[assignment, method-assign]
        record = StreamRecord()
        await send(client, record)
        await client.aclose()
        server.close()
        await asyncio.sleep(0.02)
        return record

    record = asyncio.run(main())
    assert record.end == "finished"
    assert ttft(record) < 0.25


def closing_idle(after_s: float, requests: list[float]) -> object:
    """A server function that answers one request a connection and closes idle ones."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(reader.readuntil(b"}"), after_s)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError):
            writer.close()
            return
        requests.append(time.monotonic())
        body = b"".join([*words(1), STOP, DONE])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    return accept


def test_c18_connections_closed_while_idle_are_set_up_again_and_counted() -> None:
    requests: list[float] = []

    async def main() -> tuple[StreamRecord, int]:
        accept = closing_idle(0.1, requests)
        server = await asyncio.start_server(accept, "127.0.0.1", 0)  # type: ignore[arg-type]
        port = server.sockets[0].getsockname()[1]
        client = StreamClient(Connection(f"http://127.0.0.1:{port}"))
        await client.open(1)
        await asyncio.sleep(0.3)
        record = StreamRecord()
        await send(client, record)
        reopened = client.reopened
        await client.aclose()
        server.close()
        await asyncio.sleep(0.02)
        return record, reopened

    record, reopened = asyncio.run(main())
    assert (record.end, reopened, len(requests)) == ("finished", 1, 1)


class ClosesOnFirstRequest:
    """Closes the first ``times`` connections on which a request comes, without a byte."""

    def __init__(self, times: int, after: bytes = b"") -> None:
        self.times, self.after, self.seen = times, after, 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"}")
        except asyncio.IncompleteReadError:
            return
        self.seen += 1
        if self.seen <= self.times:
            writer.write(self.after)
        else:
            body = b"".join([*words(1), STOP, DONE])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    ("times", "after", "end", "reopened", "seen"),
    [
        (1, b"", "finished", 1, 2),  # the race: closed as the request was on its way
        (2, b"", "failed", 1, 2),  # once only
        (1, b"HTTP/1.1 200 OK\r\n", "failed", 0, 1),  # not once a byte was answered
    ],
)
def test_c18_a_stale_connection_is_replaced_once_and_only_without_an_answer(
    times: int, after: bytes, end: str, reopened: int, seen: int
) -> None:
    accept = ClosesOnFirstRequest(times, after)

    async def main() -> tuple[StreamRecord, int]:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = StreamClient(Connection(f"http://127.0.0.1:{port}"))
        await client.open(1)
        record = StreamRecord()
        await send(client, record)
        count = client.reopened
        await client.aclose()
        server.close()
        await asyncio.sleep(0.02)
        return record, count

    record, count = asyncio.run(main())
    assert (record.end, count, accept.seen) == (end, reopened, seen)


def test_c18_a_connection_opened_for_the_request_is_not_tried_again() -> None:
    accept = ClosesOnFirstRequest(1)

    async def main() -> StreamRecord:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = StreamClient(Connection(f"http://127.0.0.1:{port}"))
        record = StreamRecord()
        await send(client, record)
        await client.aclose()
        server.close()
        await asyncio.sleep(0.02)
        return record

    record = asyncio.run(main())
    assert (record.end, accept.seen) == ("failed", 1)
    assert "closed the connection" in record.error


def test_c19_the_first_token_has_a_limit_of_its_own(transport: str) -> None:
    """No header for longer than the stall limit is fine before the first token."""

    async def answer(reply: Reply) -> None:
        await asyncio.sleep(0.5)
        await reply.start_stream()
        await reply.send(b"".join([*words(2), STOP, DONE]))
        await reply.end_stream()

    handler = answering(answer)
    (record,) = drive(handler, transport=transport, first_token_s=5.0, stall_s=0.2)
    assert record.end == "finished"
    (late,) = drive(handler, transport=transport, first_token_s=0.2, stall_s=5.0)
    assert late.end == "failed"
    assert "no token within 0.2 s" in late.error


def test_c19_a_stall_after_the_first_token_is_noticed(transport: str) -> None:
    handler = serving(*words(2), 60.0, STOP, DONE)
    began = time.monotonic()
    (record,) = drive(handler, transport=transport, first_token_s=120.0, stall_s=0.2)
    assert time.monotonic() - began < 50
    assert record.end == "failed"
    assert record.error == "stalled: no token for 0.2 s (the connection is silent)"


def test_c19_a_token_that_comes_past_its_limit_does_not_count_as_in_time() -> None:
    """The limit is looked at where bytes arrive, so a busy loop cannot stretch it."""

    async def main(url: str) -> StreamRecord:
        client = StreamClient(Connection(url))
        record = StreamRecord()
        task = asyncio.ensure_future(send(client, record, stall_s=0.2))
        await asyncio.sleep(0.1)
        assert record.stamps
        time.sleep(0.5)  # noqa: ASYNC251 - the busy loop
        await task
        await client.aclose()
        return record

    handler = serving(words(1)[0], 0.35, *words(1), STOP, DONE)
    with ScriptedServer({PATH: handler}) as server:
        record = asyncio.run(main(server.url))
    assert record.end == "failed"
    assert "stalled" in record.error


def test_c22_a_429_is_a_failure_and_is_not_sent_again(transport: str) -> None:
    async def handler(_: Request, reply: Reply) -> None:
        if len(server.requests) == 1:
            body = {"error": {"message": "slow down"}}
            await reply.respond(429, body, Retry_After="2")
        else:
            await reply.respond(200, b"".join([*words(1), STOP, DONE]), "text/event-stream")

    async def main() -> StreamRecord:
        client = StreamClient(Connection(server.url), transport=transport)
        record = StreamRecord()
        await send(client, record)
        await client.aclose()
        return record

    with ScriptedServer({PATH: handler}) as server:
        record = asyncio.run(main())
        assert len(server.requests) == 1
    assert (record.end, record.status, record.error) == ("failed", 429, "HTTP 429: slow down")
