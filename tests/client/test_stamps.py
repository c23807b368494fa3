"""Arrivals are stamped when they come, not when there is time for them."""

from __future__ import annotations

import asyncio
import time

import pytest

from pytest_llmperf.client import looplink, transport
from pytest_llmperf.client.connection import Connection
from pytest_llmperf.client.reader import ChunkReader
from tests.client.driving import drive, serving
from tests.client.events import DONE, STOP, delta
from tests.support.scripted import Reply, Request

PARSING_S = 0.005


@pytest.fixture
def slow_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read takes 5 ms to work on."""
    feed = ChunkReader.feed

    def feed_slowly(self: ChunkReader, data: bytes, at: float) -> None:
        time.sleep(PARSING_S)
        feed(self, data, at)

    monkeypatch.setattr(ChunkReader, "feed", feed_slowly)


@pytest.mark.usefixtures("slow_parsing", "program_stamps")
def test_stamps_do_not_wait_for_the_parsing_of_other_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty streams get a chunk in the same moment, parsing them takes 150 ms."""
    monkeypatch.setattr(looplink, "TURN_S", 0.0)
    ready: list[float] = []
    together = asyncio.Event()

    async def answer(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        ready.append(time.monotonic())
        if len(ready) == 30:
            asyncio.get_running_loop().call_later(0.3, together.set)
        await together.wait()
        await reply.send(delta(content="now"))
        await asyncio.sleep(0.5)
        await reply.send(STOP + DONE)
        await reply.end_stream()

    records = drive(answer, count=30, opened=30)
    assert {record.end for record in records} == {"finished"}
    first = [record.stamps[0] for record in records]
    assert max(first) - min(first) < 30 * PARSING_S / 2


def test_answers_are_stamped_while_requests_are_still_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty requests at once take 150 ms to write; the server answers each in no time."""
    monkeypatch.setattr(transport, "TURN_S", 0.0)
    start = Connection.start

    def start_slowly(self: Connection) -> None:
        start(self)
        time.sleep(0.005)

    monkeypatch.setattr(Connection, "start", start_slowly)
    records = drive(serving(delta(content="now"), STOP, DONE), count=30, opened=30)
    sent = [record.sent_at for record in records if record.sent_at is not None]
    heads = [record.headers_at for record in records if record.headers_at is not None]
    assert len(sent) == len(heads) == 30
    assert sum(at < max(sent) for at in heads) > 20


@pytest.mark.usefixtures("slow_parsing")
def test_what_was_laid_aside_is_read_before_the_end_of_its_connection() -> None:
    """The server closes right behind its last bytes; all of them count."""

    async def answer(_: Request, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for i in range(20):
            await reply.raw(delta(content=f"w{i}"))
            await asyncio.sleep(0.001)
        await reply.raw(STOP + DONE)
        reply.close()

    (record,) = drive(answer)
    assert (record.end, record.chunks[-1]) == ("finished", 20)


@pytest.mark.usefixtures("program_stamps")
def test_a_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound bytes are parsed before more is read, so a flood cannot fill the memory."""
    monkeypatch.setattr(looplink, "UNDIGESTED", 2**16)
    deepest: list[int] = []
    lay_aside = looplink.Backlog.lay_aside

    def watch(self: looplink.Backlog, *read: object) -> None:
        deepest.append(self.size)
        lay_aside(self, *read)  # type: ignore[arg-type]

    monkeypatch.setattr(looplink.Backlog, "lay_aside", watch)
    body = [delta(content="x" * 1000) * 500 for _ in range(10)]
    records = drive(serving(*body, STOP, DONE), count=4)
    assert [record.chunks[-1] for record in records] == [5000] * 4
    # one read of each connection may come on top, at most 256 KiB each
    assert max(deepest) <= 2**16 + 4 * 2**18
