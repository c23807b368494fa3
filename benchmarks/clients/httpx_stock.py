"""httpx as it comes: ``AsyncClient.stream`` and ``aiter_lines``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.clients import Client, script
from benchmarks.clients.simple import measure
from benchmarks.load import Seen
from pytest_llmperf.client.loop import run

CLIENTS = [Client("httpx", script(__name__))]


async def main(url: str, streams: int, requests: int, tokens: int) -> Seen:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client:

        async def stream(address: str, body: dict[str, Any]) -> AsyncIterator[str]:
            async with client.stream("POST", address, json=body) as response:
                async for line in response.aiter_lines():
                    yield line

        return await measure(stream, url, streams, requests, tokens)


if __name__ == "__main__":
    address, streams, requests, tokens, _, out = sys.argv[1:]
    run(main(address, int(streams), int(requests), int(tokens))).save(Path(out))
