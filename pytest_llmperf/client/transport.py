"""The measured transport: sockets and httptools under httpx's transport interface.

A request carries its ``Exchange`` in ``extensions["llmperf"]``. The transport stamps the socket
write and every read (by the kernel where it can), hands the bytes to the exchange there and then,
and returns the response once the answer has ended: httpx costs per request, nothing per chunk. What
the server said is in the exchange's record, not in that response.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Literal, Protocol

import httpx

from pytest_llmperf.client.connection import Connection
from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.http import CONNECT_S
from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.looplink import Backlog, LoopLink
from pytest_llmperf.client.stamps import ReceiveClock, kernel_stamps

EXTENSION = "llmperf"
OPENING_AT_ONCE = 64
TURN_S = 50e-6
"""Seconds of writing requests until sockets are looked at again."""

Stamps = Literal["kernel", "program"]


class MeasuredTransport(Protocol):
    """What the stream client needs of a transport beyond httpx's own interface."""

    name: str
    reopened: int
    """Connections that had gone stale before a request's clock and were set up again."""
    intake: Intake

    @property
    def stamps(self) -> Stamps:
        """Who stamps what is read."""
        ...

    @property
    def clock_moved_s(self) -> float:
        """How far the wall clock was set meanwhile, which the kernel's stamps are of."""
        ...

    def unread(self) -> int:
        """Bytes that have arrived and have not been read, as far as that can be seen."""
        ...

    async def open(self, url: httpx.URL, n: int) -> None:
        """Sets up ``n`` connections ahead, where the transport can."""
        ...

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response: ...

    async def aclose(self) -> None: ...


class OwnTransport(httpx.AsyncBaseTransport):
    """One server, HTTP/1.1, any number of connections, one request at a time on each.

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
        self._clock = ReceiveClock() if kernel_stamps() else None
        self.reopened = 0
        self.intake = Intake()
        self._backlog = Backlog(self.intake)

    @property
    def stamps(self) -> Stamps:
        return "kernel" if self._clock else "program"

    @property
    def clock_moved_s(self) -> float:
        return self._clock.moved_s if self._clock else 0.0

    def unread(self) -> int:
        return sum(c.link.unread() for c in self._all if c.link is not None)

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
        connection = Connection(self)
        making = self._link_kernel if self._clock else self._link_loop
        await within(
            CONNECT_S, making(connection, url.host, url.port or (443 if self._tls else 80))
        )
        self._all.add(connection)
        return connection

    async def _link_kernel(self, connection: Connection, host: str, port: int) -> None:
        from pytest_llmperf.client.kernellink import KernelLink, connect

        assert self._clock is not None
        loop = asyncio.get_running_loop()
        sock, tls = await connect(loop, host, port, self._tls)
        connection.link = KernelLink(sock, tls, loop, self._clock, self.intake, connection)

    async def _link_loop(self, connection: Connection, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        _, connection.link = await loop.create_connection(
            lambda: LoopLink(connection, self._backlog, loop),
            host,
            port,
            ssl=self._tls,
            server_hostname=host if self._tls else None,
        )

    async def _send(
        self, connection: Connection, exchange: Exchange, head: bytes, content: bytes
    ) -> bool:
        """Runs one exchange; False if the connection had gone stale before it."""
        waiter = connection.assign(exchange, head, content)
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._write_ready)
        self._ready.append(connection)
        return await waiter

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
