"""httpx's stock transport behind the same seam: for proxies, and as a cross-check."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any, Literal

import httpx

from pytest_llmperf.client.exchange import Exchange
from pytest_llmperf.client.http import CONNECT_S
from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.transport import EXTENSION

_SEND_EVENTS = ("http11.send_request_headers.started", "http2.send_request_headers.started")


class StockTransport(httpx.AsyncBaseTransport):
    """Stamps as well as httpx lets it: when its reader hands the bytes over, not at the socket."""

    name = "stock"
    stamps: Literal["program"] = "program"
    clock_moved_s = 0.0

    def __init__(self, tls: ssl.SSLContext | None, proxy: str | None = None) -> None:
        self._inner = httpx.AsyncHTTPTransport(
            verify=tls or False,
            proxy=proxy,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        self.reopened = 0
        self.intake = Intake()

    async def open(self, url: httpx.URL, n: int) -> None:
        """httpx opens connections only for a request: they are set up before its clock starts."""

    def unread(self) -> int:
        return 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange: Exchange = request.extensions[EXTENSION]
        work = asyncio.ensure_future(self._run(request, exchange))

        def abandon() -> None:
            work.cancel()

        exchange.abandon = abandon
        await asyncio.wait({work})
        if not work.cancelled():
            work.result()
        return httpx.Response(200)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _run(self, request: httpx.Request, exchange: Exchange) -> None:
        async def trace(event: str, _: Any) -> None:
            if event in _SEND_EVENTS:
                exchange.sent(time.monotonic())

        request.extensions = {
            "trace": trace,
            "timeout": {"connect": CONNECT_S, "read": None, "write": None, "pool": None},
        }
        response = await self._inner.handle_async_request(request)
        try:
            exchange.head(
                time.monotonic(),
                response.status_code,
                response.headers.get("location", ""),
            )
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for data in response.stream:
                at = time.monotonic()
                exchange.body(at, data)
                self.intake.delays.append(time.monotonic() - at)
            exchange.eof(time.monotonic())
        except httpx.HTTPError as error:
            exchange.lost(time.monotonic(), str(error) or type(error).__name__)
        finally:
            await response.aclose()
