"""aiohttp as it comes: lines of ``response.content``; on uvloop, like the others."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.clients import Client, script
from benchmarks.clients.simple import measure
from benchmarks.load import Load, Seen


def _command(url: str, load: Load, out: Path) -> list[str]:
    return [str(CLIENTS[0].python), *script(__name__)(url, load, out)[1:]]


CLIENTS = [Client("aiohttp", _command, requirements=("aiohttp", "uvloop", "numpy"))]


async def main(url: str, streams: int, requests: int, tokens: int) -> Seen:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def stream(address: str, body: dict[str, Any]) -> AsyncIterator[str]:
            async with session.post(address, json=body) as response:
                async for line in response.content:
                    yield line.decode()

        return await measure(stream, url, streams, requests, tokens)


if __name__ == "__main__":
    import uvloop

    address, streams, requests, tokens, _, out = sys.argv[1:]
    uvloop.run(main(address, int(streams), int(requests), int(tokens))).save(Path(out))
