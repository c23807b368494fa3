"""The measured transport: asyncio and httptools under httpx's transport interface.

A request carries its ``Exchange`` in ``extensions["llmperf"]``. The transport stamps the socket
write and every read, hands the bytes to the exchange there and then, and returns the response once
the answer has ended: httpx costs per request, nothing per chunk. What the server said is in the
exchange's record, not in that response.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Any, Protocol

import httptools
import httpx

from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.http import CONNECT_S

EXTENSION = "llmperf"
STALE_S = 1.0
"""A connection opened ahead that closes within this time of a request, without a byte of answer,
was closed by the server before the request came."""
MAX_HEAD = 2**17
"""Bytes that may come without one of the body among them: headers, trailers, chunk extensions."""
WRITE_SLICE = 2**18
OPENING_AT_ONCE = 64
DELAYS_KEPT = 50_000
DIGESTED_AT_ONCE = 8
"""Reads that are parsed before sockets are looked at again."""
UNDIGESTED = 2**20
"""Bytes that may wait to be parsed."""


class MeasuredTransport(Protocol):
    """What the stream client needs of a transport beyond httpx's own interface."""

    name: str
    reopened: int
    """Connections that had gone stale before a request's clock and were set up again."""
    delays: deque[float]
    """Seconds from the arrival of bytes to the end of their processing: a sample."""

    async def open(self, url: httpx.URL, n: int) -> None:
        """Sets up ``n`` connections ahead, where the transport can."""
        ...

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response: ...

    async def aclose(self) -> None: ...


class OwnTransport(httpx.AsyncBaseTransport):
    """One server, HTTP/1.1, any number of connections, one request at a time on each.

    Reads are stamped and laid aside; what they say is worked out a few at a time, with a look
    at the sockets in between. So the stamps of a step that all streams share do not wait for the
    parsing of one another, as long as there is time for it before the next step.

    Requests that are ready in the same turn of the loop are written together after the last of
    them, so that building one does not keep the answer to another waiting.
    """

    name = "own"

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._ready: list[Connection] = []
        self._reads: deque[tuple[Connection, bytes, float]] = deque()
        self._undigested = 0
        self._turn: float | None = None
        """The stamp of what is read in this turn of the loop."""
        self.reopened = 0
        self.delays: deque[float] = deque(maxlen=DELAYS_KEPT)

    async def open(self, url: httpx.URL, n: int) -> None:
        missing = n - len(self._idle)
        while missing > 0:
            few = min(missing, OPENING_AT_ONCE)
            opened = await asyncio.gather(
                *(self._connect(url) for _ in range(few)), return_exceptions=True
            )
            for connection in opened:
                if isinstance(connection, BaseException):
                    raise connection
                self.give_back(connection)
            missing -= few

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange: Exchange = request.extensions[EXTENSION]
        head = _request_head(request)
        connection = self._take_idle() or await self._connect(request.url)
        if not await self._send(connection, exchange, head, request.content):
            self.reopened += 1
            connection = await self._connect(request.url)
            await self._send(connection, exchange, head, request.content)
        return httpx.Response(200)

    async def aclose(self) -> None:
        self._idle.clear()
        for connection in list(self._all):
            connection.drop()
        await asyncio.sleep(0)

    def give_back(self, connection: Connection) -> None:
        """An open connection on which nothing runs."""
        connection.ahead = True
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self.reopened += 1

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self.reopened += 1
        return None

    async def _connect(self, url: httpx.URL) -> Connection:
        loop = asyncio.get_running_loop()
        port = url.port or (443 if self._tls else 80)
        making = loop.create_connection(
            lambda: Connection(self, loop),
            url.host,
            port,
            ssl=self._tls,
            server_hostname=url.host if self._tls else None,
        )
        _, connection = await within(CONNECT_S, making)
        self._all.add(connection)
        return connection

    async def _send(
        self, connection: Connection, exchange: Exchange, head: bytes, content: bytes
    ) -> bool:
        """Runs one exchange; False if the connection had gone stale before it."""
        waiter = connection.assign(exchange, head, content)
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._write_ready)
        self._ready.append(connection)
        return await waiter

    def lay_aside(self, connection: Connection, data: bytes) -> None:
        """Bytes that a connection received.

        What sockets hold when a turn of the loop begins is read one after another, and has one
        stamp: none is later for having been read last. Only what a socket yields a second time in
        the same turn may have come meanwhile.
        """
        if self._turn is None:
            self._turn = time.monotonic()
            connection.loop.call_soon(self._end_turn)
        elif connection.read_at == self._turn:
            self._turn = time.monotonic()
        connection.read_at = self._turn
        if not self._reads:
            connection.loop.call_soon(self._digest_some)
        self._reads.append((connection, data, self._turn))
        self._undigested += len(data)

    def _end_turn(self) -> None:
        self._turn = None

    def digest(self, count: int = 0) -> None:
        """Work on at least ``count`` of the reads laid aside; on all of them by default."""
        reads = self._reads
        count = count or len(reads)
        while reads and (count > 0 or self._undigested > UNDIGESTED):
            connection, data, at = reads.popleft()
            self._undigested -= len(data)
            count -= 1
            connection.digest(data, at)

    def _digest_some(self) -> None:
        if self._reads:
            self._reads[0][0].loop.call_soon(self._digest_some)
            self.digest(DIGESTED_AT_ONCE)

    def _write_ready(self) -> None:
        ready, self._ready = self._ready, []
        for connection in ready:
            connection.start()


class Connection(asyncio.Protocol):
    """One connection to the server, and the exchange that runs on it now."""

    def __init__(self, owner: OwnTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self.loop = loop
        self._socket: Any = None
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._parser: Any = None
        self._unsent: list[memoryview] = []
        self._paused = False
        self._complete = False
        self._keep_alive = False
        self._at = 0.0
        self.read_at = 0.0
        """When bytes came last."""
        self._reads = 0
        self._unbodied = 0
        self._head_done = False
        self._headers: dict[bytes, bytes] = {}
        self.ahead = False
        """It was open before its next request was ready, so the server may have closed it."""
        self.usable = True

    # --- one exchange

    def assign(self, exchange: Exchange, head: bytes, content: bytes) -> asyncio.Future[bool]:
        """Prepares to send; the result of the future is False for a stale connection."""
        self._exchange = exchange
        self._waiter = self.loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._unbodied = 0
        self._head_done = False
        self._headers = {}
        self._unsent = [memoryview(head), memoryview(content)]
        if len(content) < WRITE_SLICE:
            self._unsent = [memoryview(head + content)]
        exchange.abandon = self.drop
        return self._waiter

    def start(self) -> None:
        """Writes the request; the stamp is taken right before."""
        exchange = self._exchange
        if exchange is None or exchange.ended:
            return
        exchange.sent(time.monotonic())
        if self.usable:
            self._pump()
        else:
            self._broken("the connection was closed")

    def drop(self) -> None:
        """Ends the connection at once, whatever runs on it."""
        self.usable = False
        if self._socket is not None:
            self._socket.abort()
        self._resolve(True)

    def _pump(self) -> None:
        # large prompts go out in slices, between which other streams are read
        if not self._unsent or self._paused or not self.usable:
            return
        part = self._unsent[0]
        self._socket.write(part[:WRITE_SLICE])
        if len(part) > WRITE_SLICE:
            self._unsent[0] = part[WRITE_SLICE:]
        else:
            self._unsent.pop(0)
        if self._unsent and not self._paused:
            self.loop.call_soon(self._pump)

    def _resolve(self, fresh: bool) -> None:
        self._exchange = None
        self._unsent = []
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(fresh)

    def _broken(self, why: str) -> None:
        """The server closed, or broke, the connection during an exchange."""
        self.usable = False
        exchange = self._exchange
        if exchange is None:
            return
        now = time.monotonic()
        if (
            self.ahead
            and not exchange.answered
            and not self._unbodied
            and not exchange.ended
            and now - (exchange.record.sent_at or now) < STALE_S
        ):
            self._resolve(False)
            return
        if self._head_done and not self._framed():
            exchange.eof(now)
        else:
            exchange.lost(now, why)
        self._resolve(True)

    def _framed(self) -> bool:
        return b"content-length" in self._headers or b"transfer-encoding" in self._headers

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport
        self._socket.set_write_buffer_limits(high=WRITE_SLICE)

    def data_received(self, data: bytes) -> None:
        self._owner.lay_aside(self, data)

    def digest(self, data: bytes, at: float) -> None:
        """Parse what was received at ``at``."""
        self._at = at
        exchange = self._exchange
        if exchange is None:
            # an answer nobody asked for
            self.drop()
            return
        self._unbodied += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            exchange.fail(at, "the server wants to switch protocols")
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and cause is not None:
                raise cause from None
            if not self._complete:
                exchange.lost(at, f"the server does not speak HTTP/1.1: {error}")
            self.usable = False
        if self._unbodied > MAX_HEAD:
            exchange.fail(at, "the server sent more than 128 KiB of header lines")
        if exchange.ended:
            self._finish()
        self._reads += 1
        if not self._reads & 15:
            self._owner.delays.append(time.monotonic() - at)

    def eof_received(self) -> bool:
        self._owner.digest()
        self._broken("the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.digest()
        self._owner.forget(self)
        self._broken(f"the connection broke ({exc})" if exc else "the server closed the connection")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _finish(self) -> None:
        if self._complete and self._keep_alive and self.usable and not self._unsent:
            self._resolve(True)
            self._owner.give_back(self)
        else:
            self.drop()

    # --- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._exchange is None:
            return
        self._head_done = True
        location = self._headers.get(b"location", b"").decode("latin-1")
        self._exchange.head(self._at, status, location)

    def on_body(self, data: bytes) -> None:
        self._unbodied = 0
        if self._exchange is not None:
            self._exchange.body(self._at, data)

    def on_message_complete(self) -> None:
        if not self._head_done:
            self._headers.clear()
            return
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()
        if self._exchange is not None:
            self._exchange.eof(self._at)


def _request_head(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    return b"\r\n".join([*lines, b"", b""])
