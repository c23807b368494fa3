"""One connection of the measured transport: HTTP/1.1 over a link, one exchange at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import httptools

from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.link import Link

STALE_S = 1.0
"""A connection opened ahead that closes within this time of a request, without a byte of answer,
was closed by the server before the request came."""
MAX_HEAD = 2**17
"""Bytes that may come without one of the body among them: headers, trailers, chunk extensions."""


class Owner(Protocol):
    """What a connection tells the transport that it is part of."""

    intake: Intake

    def give_back(self, connection: Connection) -> None:
        """It is open, and nothing runs on it."""
        ...

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        ...


class Connection:
    """One connection to the server, and the exchange that runs on it now."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._delays = owner.intake.delays
        self.link: Link | None = None
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._parser: Any = None
        self._request = b""
        self._complete = False
        self._keep_alive = False
        self._at = 0.0
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
        self._waiter = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._unbodied = 0
        self._head_done = False
        self._headers = {}
        self._request = head + content
        exchange.abandon = self.drop
        return self._waiter

    def start(self) -> None:
        """Writes the request; its stamp is taken right before."""
        exchange = self._exchange
        if exchange is None or exchange.ended:
            return
        if self.usable and self.link is not None:
            exchange.sent(self.link.write(self._request))
        else:
            exchange.sent(time.monotonic())
            self._broken("the connection was closed")

    def drop(self) -> None:
        """Ends the connection at once, whatever runs on it."""
        self.usable = False
        if self.link is not None:
            self.link.abort()
        self._resolve(True)

    def _resolve(self, fresh: bool) -> None:
        self._exchange = None
        self._request = b""
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

    # --- link.Receiver

    def digest(self, data: bytes | memoryview, at: float) -> None:
        before, self._at = self._at, at
        exchange = self._exchange
        if exchange is None:
            # an answer nobody asked for
            self.drop()
            return
        stamps = exchange.record.stamps
        known = len(stamps)
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
        if len(stamps) > known + 1:
            self._owner.intake.note_several(at, before)
        if exchange.ended:
            self._finish()
        self._reads += 1
        if not self._reads & 15:
            self._delays.append(time.monotonic() - at)

    def eof(self) -> None:
        self._broken("the server closed the connection")

    def lost(self, error: Exception | None) -> None:
        self._owner.forget(self)
        self._broken(
            f"the connection broke ({error})" if error else "the server closed the connection"
        )

    def _finish(self) -> None:
        if self._complete and self._keep_alive and self.usable:
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
