"""Drives the client against a scripted server, over either transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pytest_llmperf.client.reader import ChunkReader, StreamFailed
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.settings import Connection
from tests.support.scripted import Handler, Reply, Request, ScriptedServer

PATH = "/v1/chat/completions"
BODY = b'{"stream": true}'


def drive(
    handler: Handler, *, transport: Any = "auto", count: int = 1, opened: int = 0, **limits: float
) -> list[StreamRecord]:
    """``count`` requests at once to a server with this handler; their records, all ended."""

    async def main(url: str) -> list[StreamRecord]:
        client = StreamClient(Connection(url), transport=transport)
        records = [StreamRecord() for _ in range(count)]
        try:
            await client.open(opened)
            await asyncio.gather(*(send(client, record, **limits) for record in records))
        finally:
            await client.aclose()
        return records

    with ScriptedServer({PATH: handler}) as server:
        return asyncio.run(main(server.url))


async def send(client: StreamClient, record: StreamRecord, **limits: Any) -> None:
    """One request with limits that a test does not reach unless it gives its own."""
    await client.stream(PATH, BODY, record, **{"first_token_s": 10.0, "stall_s": 10.0, **limits})


def serving(*pieces: bytes | float, finish: bool = True) -> Handler:
    """A handler that answers 200 with these pieces of body; a number is a pause in seconds."""

    async def handler(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        for piece in pieces:
            if isinstance(piece, bytes):
                await reply.send(piece)
            else:
                await asyncio.sleep(piece)
        if finish:
            await reply.end_stream()

    return handler


def read(*pieces: bytes) -> StreamRecord:
    """The record of a body that came in these reads, a tenth of a second apart, without a server.

    Ends as the stream client would end it.
    """
    record = StreamRecord(sent_at=0.0)
    reader = ChunkReader(record)
    try:
        for i, piece in enumerate(pieces, 1):
            reader.feed(piece, i / 10)
        reader.close()
        record.end = "finished"
    except StreamFailed as failure:
        record.end, record.error = "failed", str(failure)
    reader.settle()
    return record


def answering(answer: Callable[[Reply], Awaitable[None]]) -> Handler:
    """A handler that does not look at the request."""

    async def handler(_: Request, reply: Reply) -> None:
        await answer(reply)

    return handler
