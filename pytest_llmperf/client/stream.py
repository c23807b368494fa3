"""The client of the measured requests."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import httpx

from pytest_llmperf.client.exchange import Arrived, Exchange
from pytest_llmperf.client.http import (
    build_headers,
    build_tls,
    explain_failure,
    find_proxy,
    join_path,
    list_secrets,
    parse_root,
)
from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stock import StockTransport
from pytest_llmperf.client.transport import (
    EXTENSION,
    MeasuredTransport,
    OwnTransport,
    Stamps,
)
from pytest_llmperf.model.settings import Connection

CHECK_S = 0.05
"""How often deadlines are looked at where no bytes arrive."""


class StreamClient:
    """Streaming requests to one server; one client per cell and event loop.

    Attributes:
        note: why the stock transport is used, where it was not asked for; else empty.
    """

    def __init__(
        self, connection: Connection, *, transport: Literal["auto", "stock"] = "auto"
    ) -> None:
        """
        Raises:
            ConfigError: the address, a header or the CA file cannot be used.
        """
        self._root = parse_root(connection.url)
        self._secrets = list_secrets(connection)
        tls = build_tls(connection.verify) if self._root.scheme == "https" else None
        proxy = find_proxy(self._root)
        self.note = ""
        self._transport: MeasuredTransport
        if transport == "stock" or proxy:
            self._transport = StockTransport(tls, proxy)
            if proxy and transport == "auto":
                self.note = (
                    "a proxy is set in the environment: stock HTTP transport, coarser stamps"
                )
        else:
            self._transport = OwnTransport(tls)
        self._headers = httpx.Headers(
            {
                **build_headers(connection),
                "accept": "text/event-stream",
                "content-type": "application/json",
            }
        )
        self._urls: dict[str, httpx.URL] = {}
        self._active: set[Exchange] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> str:
        """ "own" or "stock"."""
        return self._transport.name

    @property
    def reopened(self) -> int:
        """Connections that had gone stale before a request's clock and were set up again."""
        return self._transport.reopened

    @property
    def stamps(self) -> Stamps:
        """Who stamps what is read: the kernel, or this program once it gets to it."""
        return self._transport.stamps

    @property
    def clock_moved_s(self) -> float:
        """How far the wall clock was set since this client exists; 0 where its stamps do not
        depend on it."""
        return self._transport.clock_moved_s

    @property
    def intake(self) -> Intake:
        """What was read, and how late."""
        return self._transport.intake

    def unread(self) -> int:
        """Bytes that have arrived and have not been read."""
        return self._transport.unread()

    async def open(self, n: int) -> None:
        """Opens ``n`` connections, before any clock starts.

        Raises:
            ServerUnusable: the server cannot be connected to.
        """
        try:
            await self._transport.open(self._root, n)
        except (OSError, asyncio.TimeoutError, httpx.HTTPError) as error:
            raise explain_failure(error, self._root) from error

    async def stream(
        self,
        path: str,
        body: bytes,
        record: StreamRecord,
        *,
        first_token_s: float,
        stall_s: float,
        idle_s: float | None = None,
        on_arrival: Arrived | None = None,
    ) -> None:
        """Sends one request and returns when it has ended; ``record.end`` then says how.

        Nothing a server does raises. A cancelled call marks the record and drops the connection.

        Args:
            path: e.g. ``/v1/chat/completions``, below the server's root.
            body: the JSON document.
            first_token_s: seconds from the send to the first token.
            stall_s: seconds from one token to the next; comments do not count.
            idle_s: seconds without any byte, comments included; None for no limit.
            on_arrival: called with the stamp for every read that brought tokens, after they are
                in the record. It must be quick and must not raise.
        """
        exchange = Exchange(
            record,
            first_token_s=first_token_s,
            stall_s=stall_s,
            idle_s=idle_s,
            on_arrival=on_arrival,
            secrets=self._secrets,
        )
        if path not in self._urls:
            self._urls[path] = join_path(self._root, path)
        # straight to the transport: httpx's client would add 100 us to each start of a stream for
        # redirects, cookies and retries that a measured request must not have
        request = httpx.Request(
            "POST",
            self._urls[path],
            headers=self._headers,
            content=body,
            extensions={EXTENSION: exchange},
        )
        self._active.add(exchange)
        self._arm()
        try:
            await self._transport.handle_async_request(request)
        except asyncio.CancelledError:
            exchange.cancel(time.monotonic())
            raise
        except (OSError, asyncio.TimeoutError, httpx.HTTPError) as error:
            exchange.fail(time.monotonic(), str(explain_failure(error, self._root)))
        finally:
            self._active.discard(exchange)

    async def aclose(self) -> None:
        """Ends whatever runs and closes all connections. Idempotent."""
        for exchange in list(self._active):
            exchange.cancel(time.monotonic())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._transport.aclose()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic()
        for exchange in list(self._active):
            exchange.check(now)
        if self._active:
            self._arm()
