"""The least that Python can do: an ``asyncio.Protocol`` that stamps a read, and httptools.

No client but a yardstick: on a machine whose speed varies it says what a chunk costs at best. With
msgspec it also decodes each chunk as it comes, which a client has to.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from benchmarks.clients import Client, script
from benchmarks.clients.simple import BODY, figures
from benchmarks.load import Seen
from pytest_llmperf.client.loop import run

CLIENTS = [
    Client("bare protocol", script(__name__, "later")),
    Client("bare protocol, msgspec", script(__name__, "msgspec")),
]


class Usage(msgspec.Struct):
    completion_tokens: int


class Chunk(msgspec.Struct):
    usage: Usage


decode = msgspec.json.Decoder(Chunk).decode


class Stream(asyncio.Protocol):
    """One connection. What it read is looked into only after the run."""

    def __init__(self, decodes: bool) -> None:
        self._decodes = decodes
        self.reads: list[tuple[float, bytes]] = []
        self.sent = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, request: bytes) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.sent = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._at = time.monotonic()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.reads.append((self._at, body))
        if self._decodes and body.startswith(b"data: {"):
            decode(body[6:])

    def on_message_complete(self) -> None:
        self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server hung up"))


async def main(url: str, streams: int, requests: int, tokens: int, decodes: bool) -> Seen:
    address = urlsplit(url)
    body = json.dumps({**BODY, "max_tokens": tokens}).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop, left, ended = asyncio.get_running_loop(), iter(range(requests)), list[Stream]()

    async def connect() -> Stream:
        _, stream = await loop.create_connection(
            lambda: Stream(decodes), address.hostname, address.port
        )
        return stream

    async def work(stream: Stream) -> None:
        for _ in left:
            if stream.done.done():
                stream = await connect()
            stream.send(request)
            await stream.done
            ended.append(stream)

    opened = [await connect() for _ in range(streams)]
    cpu = time.process_time()
    await asyncio.gather(*map(work, opened))
    cpu = time.process_time() - cpu
    return figures([s.sent for s in ended], [arrivals(s.reads) for s in ended], cpu)


def arrivals(reads: list[tuple[float, bytes]]) -> list[tuple[float, int]]:
    """When tokens came, and how many there were then."""
    found: list[tuple[float, int]] = []
    rest = b""
    for at, body in reads:
        *lines, rest = (rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                made = json.loads(line[6:])["usage"]["completion_tokens"]
                if made > (found[-1][1] if found else 0):
                    found.append((at, made))
    return found


if __name__ == "__main__":
    address, streams, requests, tokens, _, out, how = sys.argv[1:]
    seen = run(main(address, int(streams), int(requests), int(tokens), how == "msgspec"))
    seen.save(Path(out))
