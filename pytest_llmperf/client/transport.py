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
from math import inf
from typing import Protocol

import httpx

from pytest_llmperf.client.connection import Connection
from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.http import CONNECT_S

EXTENSION = "llmperf"
OPENING_AT_ONCE = 64
DELAYS_KEPT = 50_000
TURN_S = 50e-6
"""Seconds of parsing, or of writing requests, until sockets are looked at again."""
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

    Requests that are ready in the same turn of the loop are written after the last of them, so
    that building one does not keep the answer to another waiting; a few at a time as well, so that
    their answers do not come faster than they can be read.
    """

    name = "own"

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._ready: deque[Connection] = deque()
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
        if self._turn is None or connection.read_at == self._turn:
            self._turn = time.monotonic()
        connection.read_at = self._turn
        if not self._reads:
            connection.loop.call_soon(self._digest_some, connection.loop)
        self._reads.append((connection, data, self._turn))
        self._undigested += len(data)

    def digest(self, limit_s: float = inf) -> None:
        """Work on the reads laid aside: for so many seconds, but on one of them at least."""
        reads, until = self._reads, time.monotonic() + limit_s
        while reads:
            connection, data, at = reads.popleft()
            self._undigested -= len(data)
            connection.digest(data, at)
            if time.monotonic() >= until and self._undigested <= UNDIGESTED:
                return

    def _digest_some(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        try:
            self.digest(TURN_S)
        finally:
            if self._reads:
                loop.call_soon(self._digest_some, loop)

    def _write_ready(self) -> None:
        ready, until = self._ready, time.monotonic() + TURN_S
        try:
            ready.popleft().start()
            while ready and time.monotonic() < until:
                ready.popleft().start()
        finally:
            if ready:
                asyncio.get_running_loop().call_soon(self._write_ready)


def _request_head(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    return b"\r\n".join([*lines, b"", b""])
