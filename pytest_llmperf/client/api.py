"""Plain calls to the server under test: bounded in time and size, the key sent nowhere else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.http import (
    CONNECT_S,
    build_headers,
    build_tls,
    explain_failure,
    join_path,
    list_secrets,
    parse_root,
    same_origin,
)
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.model.redact import UNMISTAKABLE, redact
from pytest_llmperf.model.settings import Connection

MAX_BODY = 16 * 2**20
MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_REPEATED = (307, 308)
"""Redirects that a POST may be repeated for as it is."""


class ServerApi:
    """``engines.base.Api`` over httpx. Usable from one event loop after another."""

    def __init__(self, connection: Connection, *, timeout_s: float = 30.0) -> None:
        """
        Raises:
            ConfigError: the address, a header or the CA file cannot be used.
        """
        self._root = parse_root(connection.url)
        self._metrics = httpx.URL(connection.metrics_url) if connection.metrics_url else None
        self._headers = build_headers(connection)
        self._secrets = list_secrets(connection)
        self._long_secrets = [secret for secret in self._secrets if len(secret) >= UNMISTAKABLE]
        self._tls = build_tls(connection.verify)
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET below the server's root; ``/metrics`` is asked for at the
        metrics address where the user gave one. Never raises for an HTTP status.

        Raises:
            ServerUnusable: no HTTP answer at all, or one of more than 16 MiB.
        """
        of_metrics = path.partition("?")[0] == "/metrics"
        url = self._metrics if of_metrics else None
        return await self._call("GET", url or join_path(self._root, path), None)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """The same for a POST with a JSON body."""
        return await self._call("POST", join_path(self._root, path), json.dumps(body).encode())

    async def __aenter__(self) -> ServerApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes what is open. Idempotent."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _call(self, method: str, url: httpx.URL, body: bytes | None) -> tuple[int, str]:
        try:
            return await within(self._timeout_s, self._follow(method, url, body))
        except (OSError, asyncio.TimeoutError, httpx.HTTPError) as error:
            raise explain_failure(error, url) from error

    async def _follow(self, method: str, url: httpx.URL, body: bytes | None) -> tuple[int, str]:
        for _ in range(MAX_REDIRECTS):
            status, text, location = await self._once(method, url, body)
            if not location or status not in (_REDIRECTS if method == "GET" else _REPEATED):
                return status, text
            target = url.join(location)
            if not same_origin(url, target):
                return status, f"redirects to {target.scheme}://{target.host}; use that address"
            url = target
        return status, "redirects in a circle"

    async def _once(self, method: str, url: httpx.URL, body: bytes | None) -> tuple[int, str, str]:
        headers = {"content-type": "application/json"} if body is not None else {}
        client = self._ensure_client()
        async with client.stream(method, url, content=body, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ServerUnusable(f"{url.host} compresses its answers though asked not to")
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > MAX_BODY:
                    raise ServerUnusable(f"{url.host} answered {url.path} with more than 16 MiB")
            text = data.decode("utf-8", "replace")
            if response.is_error:
                text = redact(text, self._secrets)
            elif any(secret in text for secret in self._long_secrets):
                # a server that echoes requests must not get the key into a report
                text = redact(text, self._long_secrets)
            return response.status_code, text, response.headers.get("location", "")

    def _ensure_client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            try:
                self._client = httpx.AsyncClient(
                    headers=self._headers,
                    verify=self._tls,
                    timeout=httpx.Timeout(self._timeout_s, connect=CONNECT_S),
                    # a connection for each call: none goes stale, none outlives its event loop
                    limits=httpx.Limits(max_keepalive_connections=0),
                    follow_redirects=False,
                )
            except (ImportError, ValueError, httpx.InvalidURL) as error:
                raise ConfigError(
                    f"a proxy that the environment names cannot be used: {redact(str(error))}"
                ) from None
        return self._client
