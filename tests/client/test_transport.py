"""The measured transport: connections, writes, limits, TLS. Most hold for the stock one too."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from pytest_llmperf.client.loop import run
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.errors import ServerUnusable
from pytest_llmperf.model.settings import Connection
from tests.client.driving import PATH, answering, drive, send, serving
from tests.client.events import DONE, ROLE, STOP, counted, words
from tests.support.scripted import Reply, Request, ScriptedServer

WHOLE = b"".join([ROLE, *words(3), STOP, DONE])


async def answer_whole(_: Request, reply: Reply) -> None:
    await reply.respond(200, WHOLE, "text/event-stream")


def with_client(
    handler: Callable[[Request, Reply], Awaitable[None]],
    use: Callable[[StreamClient, ScriptedServer], Awaitable[None]],
    runner: Callable[[Any], Any] = asyncio.run,
    path: str = PATH,
    suffix: str = "",
    **settings: Any,
) -> None:
    """Runs ``use`` with a client of a server with this handler."""
    transport = settings.pop("transport", "auto")

    async def main() -> None:
        client = StreamClient(Connection(server.url + suffix, **settings), transport=transport)
        try:
            await use(client, server)
        finally:
            await client.aclose()

    with ScriptedServer({path: handler}) as server:
        runner(main())


@pytest.mark.parametrize("runner", [asyncio.run, run], ids=["asyncio", "fastest"])
def test_one_connection_serves_requests_one_after_another(runner: Any) -> None:
    async def use(client: StreamClient, server: ScriptedServer) -> None:
        await client.open(1)
        for _ in range(5):
            record = StreamRecord()
            await send(client, record)
            assert record.end == "finished"
        assert len(server.connections) == 1
        assert client.reopened == 0

    with_client(answer_whole, use, runner)


def test_open_sets_up_connections_ahead() -> None:
    async def use(client: StreamClient, server: ScriptedServer) -> None:
        await client.open(100)
        await asyncio.sleep(0.2)
        assert len(server.connections) == 100
        assert server.requests == []
        await client.open(100)
        assert len(server.connections) == 100

    with_client(answer_whole, use)


def test_open_says_that_nothing_listens(transport: Any) -> None:
    async def main() -> StreamRecord:
        client = StreamClient(Connection("http://127.0.0.1:9"), transport=transport)
        if transport == "auto":
            with pytest.raises(ServerUnusable, match="nothing listens at"):
                await client.open(3)
        record = StreamRecord()
        await send(client, record)
        await client.aclose()
        return record

    record = asyncio.run(main())
    assert (record.end, record.sent_at) == ("failed", None)
    assert "nothing listens at http://127.0.0.1:9" in record.error


@pytest.mark.parametrize("runner", [asyncio.run, run], ids=["asyncio", "fastest"])
def test_a_cancelled_request_is_marked_and_its_connection_dropped(
    runner: Any, transport: Any
) -> None:
    gone: list[bool] = []

    async def endless(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        for i in range(1, 200):
            await reply.send(counted("x ", i))
            await asyncio.sleep(0.02)
            if await reply.client_gone():
                gone.append(True)
                return

    async def use(client: StreamClient, _: ScriptedServer) -> None:
        record = StreamRecord()
        task = asyncio.ensure_future(send(client, record))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert record.end == "cancelled"
        assert record.error == ""
        assert record.tokens
        assert record.tail == "x " * record.chunks[-1]
        await asyncio.sleep(0.2)
        assert gone == [True]

    with_client(endless, use, runner, transport=transport)


def test_closing_the_client_ends_what_runs(transport: Any) -> None:
    async def use(client: StreamClient, _: ScriptedServer) -> None:
        record = StreamRecord()
        task = asyncio.ensure_future(send(client, record))
        await asyncio.sleep(0.2)
        await client.aclose()
        await asyncio.wait_for(task, 1)
        assert record.end == "cancelled"

    with_client(serving(*words(1), 5.0), use, transport=transport)


def test_the_connection_is_freed_when_a_done_stream_does_not_end() -> None:
    """``[DONE]``, and then neither the end of the HTTP message nor of the connection."""
    (record,) = drive(serving(WHOLE, 5.0), count=1)
    assert record.end == "finished"
    assert record.ended_at is not None
    assert record.ended_at - record.stamps[-1] < 0.2


def test_arrivals_are_told_once_a_read() -> None:
    told: list[float] = []

    async def use(client: StreamClient, _: ScriptedServer) -> None:
        record = StreamRecord()
        await send(client, record, on_arrival=told.append)
        assert told == sorted(set(record.stamps))

    with_client(serving(ROLE, 0.05, *words(1), 0.05, b"".join(words(3)), 0.05, STOP, DONE), use)
    assert len(told) == 2


def test_a_large_prompt_does_not_hold_up_other_streams() -> None:
    """16 bodies of 4 MB start while a stream of tokens runs: its longest gap stays small."""
    body = b"[" + b"1," * 2_000_000 + b"1]"
    assert len(body) > 4_000_000

    async def handler(request: Request, reply: Reply) -> None:
        if len(request.body) > 1000:
            await answer_whole(request, reply)
            return
        await reply.start_stream()
        for i in range(1, 101):
            await reply.send(counted("x", i))
            await asyncio.sleep(0.01)
        await reply.send(STOP + DONE)
        await reply.end_stream()

    async def use(client: StreamClient, server: ScriptedServer) -> None:
        await client.open(9)
        slow, large = StreamRecord(), [StreamRecord() for _ in range(8)]
        running = asyncio.ensure_future(send(client, slow))
        await asyncio.sleep(0.2)
        limits = {"first_token_s": 30.0, "stall_s": 30.0}
        await asyncio.gather(*(client.stream(PATH, body, r, **limits) for r in large))
        await running
        assert {r.end for r in [slow, *large]} == {"finished"}
        assert all(request.body in (body, b'{"stream": true}') for request in server.requests)

    with_client(handler, use)


def test_an_answer_before_the_request_is_out_ends_it() -> None:
    """A server that refuses a large body on its headers, and reads no more of it."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 413 X\r\nContent-Length: 17\r\n\r\n{"error":"large"}')
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.transport.abort()

    async def main() -> StreamRecord:
        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**16)
        port = server.sockets[0].getsockname()[1]
        client = StreamClient(Connection(f"http://127.0.0.1:{port}"))
        record = StreamRecord()
        body = b"x" * 30_000_000
        await client.stream(PATH, body, record, first_token_s=5.0, stall_s=5.0)
        await client.aclose()
        server.close()
        await asyncio.sleep(0.4)
        return record

    record = asyncio.run(main())
    assert (record.end, record.status, record.error) == ("failed", 413, "HTTP 413: large")


RAW_FAILURES = {
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
    "an upgrade": (
        b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "",
    ),
    "a redirect": (
        b"HTTP/1.1 307 X\r\nLocation: https://else.where/v1\r\nContent-Length: 0\r\n\r\n",
        "redirects to https://else.where/v1",
    ),
    "html": (
        b"HTTP/1.1 502 X\r\nContent-Length: 38\r\n\r\n<html>\n<h1>502 Bad Gateway</h1></html>",
        "HTTP 502: a web page, '502 Bad Gateway'",
    ),
    "html without a title": (
        b"HTTP/1.1 404 X\r\nContent-Length: 22\r\n\r\n<!DOCTYPE html><p>gone",
        "HTTP 404: a web page",
    ),
    "nothing": (b"HTTP/1.1 204 X\r\n\r\n", "truncated"),
    "an empty error": (b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", "no reason given"),
    "a bad chunk": (
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "does not speak HTTP",
    ),
}


@pytest.mark.parametrize("name", RAW_FAILURES)
def test_what_is_no_stream_fails_with_a_reason(name: str) -> None:
    data, reason = RAW_FAILURES[name]

    async def answer(reply: Reply) -> None:
        await reply.raw(data)

    (record,) = drive(answering(answer), first_token_s=1.0)
    assert record.end == "failed"
    assert record.error
    assert reason in record.error


def test_an_error_whose_body_never_ends_is_told_after_the_stall_limit(transport: Any) -> None:
    async def answer(reply: Reply) -> None:
        await reply.raw(b'HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\n{"error": "boom"}')
        await asyncio.sleep(5)

    (record,) = drive(answering(answer), transport=transport, first_token_s=60.0, stall_s=0.2)
    assert (record.end, record.error) == ("failed", "HTTP 500: boom")


def test_informational_answers_are_passed_over() -> None:
    async def answer(reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        await reply.respond(200, WHOLE, "text/event-stream")

    (record,) = drive(answering(answer))
    assert (record.end, record.status) == ("finished", 200)


FLOODS = {
    "headers": (b"HTTP/1.1 200 X\r\n", b"X-A: " + b"a" * 1000 + b"\r\n"),
    "one header": (b"HTTP/1.1 200 X\r\nX-A: ", b"a" * 1000),
    "trailers": (
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n:\n\r\n0\r\n",
        b"X-A: " + b"a" * 1000 + b"\r\n",
    ),
    "chunk extension": (
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n2;a=",
        b"a" * 1000,
    ),
    "early hints": (b"", b"HTTP/1.1 103 X\r\nX-A: " + b"a" * 1000 + b"\r\n\r\n"),
    "a line": (b"HTTP/1.1 200 X\r\n\r\ndata: ", b"a" * 100_000),
    "an error body": (b"HTTP/1.1 500 X\r\n\r\n", b"a" * 1000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_request_and_not_the_memory(name: str) -> None:
    head, more = FLOODS[name]

    async def answer(reply: Reply) -> None:
        await reply.raw(head)
        for _ in range(1_000_000):
            await reply.raw(more)

    (record,) = drive(answering(answer), first_token_s=8.0)
    assert record.end == "failed"
    assert "no token within" not in record.error


def test_the_key_and_headers_are_sent_and_never_shown(transport: Any) -> None:
    key, org = "sk-verysecretkey", "org-also-secret"

    async def handler(request: Request, reply: Reply) -> None:
        sent = request.headers
        await reply.respond(401, {"error": f"bad key {sent['authorization']} of {sent['x-org']}"})

    async def use(client: StreamClient, server: ScriptedServer) -> None:
        record = StreamRecord()
        await send(client, record)
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
        assert server.requests[0].headers["accept-encoding"] == "identity"
        assert record.error.startswith("HTTP 401: bad key")
        assert key not in record.error
        assert org not in record.error

    with_client(handler, use, api_key=key, headers={"X-Org": org}, transport=transport)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("prefix", ["", "/gateway/a"])
def test_addresses_with_and_without_v1_and_prefix(prefix: str, suffix: str) -> None:
    async def use(client: StreamClient, server: ScriptedServer) -> None:
        record = StreamRecord()
        await send(client, record)
        assert server.requests[0].path == prefix + PATH
        assert record.end == "finished"

    with_client(answer_whole, use, path=prefix + PATH, suffix=prefix + suffix)


def test_both_transports_give_the_same_record_but_for_time() -> None:
    body = [ROLE, *(counted(f"w{i} ", 2 * i) for i in range(1, 30)), STOP, DONE]
    own, stock = (
        drive(serving(*[piece for e in body for piece in (e, 0.002)]), transport=kind)[0]
        for kind in ("auto", "stock")
    )
    for name in ("tokens", "chunks", "tail", "text_hash", "end", "finish_reason", "status"):
        assert getattr(own, name) == getattr(stock, name)
    for record in (own, stock):
        assert record.sent_at is not None
        assert record.headers_at is not None
        assert record.sent_at < record.headers_at <= record.stamps[0]


def test_both_transports_time_alike_at_low_load() -> None:
    """Four streams of 30 tokens, 10 ms apart after 100 ms: both see the server's own pace."""
    handler = serving(0.1, *[p for i in range(1, 31) for p in (counted("x", i), 0.01)], STOP, DONE)
    for kind in ("auto", "stock"):
        for record in drive(handler, transport=kind, count=4, opened=4):
            assert record.sent_at is not None
            assert 0.09 <= record.stamps[0] - record.sent_at < 0.4
            assert 0.25 <= record.stamps[-1] - record.stamps[0] < 0.8


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    ca = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return ca, path


@contextlib.contextmanager
def tls_server(ca: trustme.CA, *names: str) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    with ScriptedServer({PATH: answer_whole}, ssl=context) as server:
        yield server


def ask_over_tls(
    server: ScriptedServer, verify: Any, transport: str, runner: Any = asyncio.run
) -> StreamRecord:
    async def main() -> StreamRecord:
        kind: Any = transport
        client = StreamClient(Connection(server.url, verify=verify), transport=kind)
        record = StreamRecord()
        await send(client, record)
        await send(client, record := StreamRecord())
        await client.aclose()
        return record

    record: StreamRecord = runner(main())
    return record


@pytest.mark.parametrize("runner", [asyncio.run, run], ids=["asyncio", "fastest"])
def test_tls_with_a_ca_file(
    authority: tuple[trustme.CA, Path], transport: str, runner: Any
) -> None:
    ca, path = authority
    with tls_server(ca, "127.0.0.1") as server:
        record = ask_over_tls(server, str(path), transport, runner)
    assert (record.end, record.tail) == ("finished", "w0 w1 w2 ")


def test_tls_is_verified_unless_told_otherwise(
    authority: tuple[trustme.CA, Path], transport: str
) -> None:
    ca, _ = authority
    with tls_server(ca, "127.0.0.1") as server:
        record = ask_over_tls(server, True, transport)
        assert record.end == "failed"
        assert "certificate is not trusted" in record.error
        assert ask_over_tls(server, False, transport).end == "finished"
        assert len(server.requests) == 2


def test_tls_checks_the_name(authority: tuple[trustme.CA, Path], transport: str) -> None:
    ca, path = authority
    with tls_server(ca, "another.host") as server:
        record = ask_over_tls(server, str(path), transport)
        assert record.end == "failed"
        assert server.requests == []


def test_a_proxy_in_the_environment_takes_the_stock_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def proxy(request: Request, reply: Reply) -> None:
        assert request.path.startswith("http://model.example/")
        await answer_whole(request, reply)

    with ScriptedServer({"http://model.example" + PATH: proxy}) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "localhost")

        async def main() -> tuple[StreamClient, StreamRecord]:
            client = StreamClient(Connection("http://model.example"))
            record = StreamRecord()
            await send(client, record)
            await client.aclose()
            return client, record

        client, record = asyncio.run(main())
        assert client.transport == "stock"
        assert "proxy" in client.note
        assert record.end == "finished"
        assert StreamClient(Connection("http://localhost:1")).transport == "own"
