"""The kernel's stamps: right however late the client reads, not trusted where they cannot be."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_llmperf.client import kernellink, stamps
from pytest_llmperf.client.health import HealthMonitor, client_bound
from pytest_llmperf.client.intake import IDLE_S, Intake
from pytest_llmperf.client.loop import run
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stamps import SO_TIMESTAMPNS, STEP_S, ReceiveClock, kernel_stamps
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.result import ClientHealth
from pytest_llmperf.model.settings import Connection
from tests.client.driving import PATH, drive, send, serving
from tests.client.events import DONE, STOP, delta, words
from tests.support.scripted import Reply, Request, ScriptedServer

needs_kernel = pytest.mark.skipif(not kernel_stamps(), reason="the kernel stamps no TCP bytes here")


class Clocks:
    """Both clocks, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.wall = 1000.0, 1_900_000_000.25
        monkeypatch.setattr(stamps.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(stamps.time, "time", lambda: self.wall)
        monkeypatch.setattr(stamps.time, "monotonic_ns", lambda: round(self.now * 1e9))
        monkeypatch.setattr(stamps.time, "time_ns", lambda: round(self.wall * 1e9))

    def run(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def arrives(self) -> list[tuple[int, int, bytes]]:
        """What the kernel says of bytes that arrive now."""
        whole = int(self.wall)
        timespec = struct.pack("@ll", whole, round((self.wall - whole) * 1e9))
        return [(1, SO_TIMESTAMPNS, timespec)]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_a_stamp_is_brought_to_the_monotonic_scale(clocks: Clocks) -> None:
    clock = ReceiveClock()
    clocks.run(3.5)
    came = clocks.arrives()
    clocks.run(0.2)
    assert clock.stamp(came, clocks.now) == pytest.approx(1003.5, abs=1e-6)
    assert clock.moved_s == 0


@pytest.mark.parametrize("step_s", [3600.0, 0.05, -0.05, -3600.0])
def test_stamps_of_before_a_step_of_the_wall_clock_are_not_trusted(
    clocks: Clocks, step_s: float
) -> None:
    """What was in the socket while someone set the clock has no stamp; later reads are right."""
    clock = ReceiveClock()
    came = clocks.arrives()
    clocks.run(0.001)
    clocks.wall += step_s
    assert clock.stamp(came, clocks.now) is None
    assert clock.moved_s == pytest.approx(step_s, abs=1e-5)
    clocks.run(1.0)
    came = clocks.arrives()
    clocks.run(0.1)
    assert clock.stamp(came, clocks.now) == pytest.approx(1001.001, abs=1e-6)


def test_an_interruption_between_two_looks_is_no_step(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread sleeps 5 ms after it looked at one clock and before it looks at the other."""
    clock = ReceiveClock()
    came = clocks.arrives()
    now = clocks.now
    clocks.run(0.005)
    assert clock.stamp(came, now) == pytest.approx(1000.0, abs=1e-6)
    assert clock.moved_s == 0


def test_a_read_without_a_stamp_or_with_one_of_the_future_has_none(clocks: Clocks) -> None:
    clock = ReceiveClock()
    assert clock.stamp([], clocks.now) is None
    came = clocks.arrives()
    assert clock.stamp(came, clocks.now - STEP_S / 2) is None


def test_merged_reads_are_told_from_chunks_that_were_sent_together() -> None:
    """A loop that waited for a read cannot have merged it; one that was busy for a step may."""
    intake = Intake()
    for step in range(1, 11):  # idle in between: two chunks in one read are the server's doing
        intake.note(300, step * 0.02, step * 0.02 + IDLE_S / 3)
        intake.note_several(step * 0.02, (step - 1) * 0.02)
    assert (intake.reads, intake.merged) == (10, 0)
    busy = 0.3
    while busy < 0.35:  # another connection keeps the loop busy for two and a half steps
        intake.note(300, 0.3, busy)
        busy += IDLE_S / 2
    intake.note(300, 0.34, busy)
    intake.note_several(0.34, 0.3)
    assert intake.merged == 1


def test_a_loop_that_stood_still_may_have_merged_what_it_reads_next() -> None:
    intake = Intake()
    intake.note(300, 0.02, 0.02)
    intake.note(300, 0.10, 0.105)
    intake.note_several(0.10, 0.02)
    assert intake.merged == 1


@needs_kernel
@pytest.mark.parametrize("runner", [asyncio.run, run], ids=["asyncio", "uvloop"])
def test_stamps_are_right_though_the_loop_stands_still(runner: Callable[[Any], Any]) -> None:
    """Chunks every 50 ms, a loop that is stuck for 30 of every 50 ms: the program would stamp them
    up to 30 ms late, the kernel's stamps are those of the sending."""
    sent: list[float] = []

    async def answer(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        first = time.monotonic() + 0.05
        for i in range(20):
            await asyncio.sleep(first + 0.05 * i - time.monotonic())
            sent.append(time.monotonic())
            await reply.send(delta(content=f"w{i}"))
        await reply.send(STOP + DONE)
        await reply.end_stream()

    async def stall() -> None:
        while True:
            await asyncio.sleep(0.02)
            time.sleep(0.03)  # noqa: ASYNC251

    async def main(url: str) -> StreamRecord:
        client, record = StreamClient(Connection(url)), StreamRecord()
        await client.open(1)
        stalling = asyncio.create_task(stall())
        await send(client, record)
        stalling.cancel()
        await client.aclose()
        return record

    with ScriptedServer({PATH: answer}) as server:
        record = runner(main(server.url))
    late = sorted(at - was for was, at in zip(sent, record.stamps, strict=True))
    assert late[0] >= 0
    # the server is a thread of this process: now and then it is itself late between look and send
    assert late[len(late) // 2] < 0.005


@needs_kernel
def test_the_result_says_whose_stamps_they_are(program_stamps_later: Callable[[], None]) -> None:
    async def health(url: str) -> ClientHealth:
        client = StreamClient(Connection(url))
        monitor = HealthMonitor(client)
        monitor.start()
        await asyncio.gather(*(send(client, StreamRecord()) for _ in range(3)))
        found = monitor.stop()
        await client.aclose()
        return found

    with ScriptedServer({PATH: serving(*words(3), STOP, DONE)}) as server:
        found = asyncio.run(health(server.url))
        program_stamps_later()
        other = asyncio.run(health(server.url))
    assert (found.stamps, found.transport, found.unread_s) == ("kernel", "own", 0.0)
    assert found.merged_reads is not None
    assert (other.stamps, other.transport) == ("program", "own")
    assert (other.merged_reads, other.unread_s, other.clock_moved_ms) == (None, None, None)


@pytest.fixture
def program_stamps_later(request: pytest.FixtureRequest) -> Callable[[], None]:
    return lambda: request.getfixturevalue("program_stamps")


@needs_kernel
def test_unread_bytes_at_the_end_are_seen() -> None:
    """The server sends on while the loop stands still: a second's worth is unread."""
    standing, flooding = threading.Event(), threading.Event()

    async def answer(_: Request, reply: Reply) -> None:
        await reply.start_stream()
        for i in range(40):
            await reply.send(delta(content=f"w{i}"))
            if i == 19:
                await asyncio.to_thread(standing.wait, 10)
        flooding.set()
        await reply.send(STOP + DONE)
        await reply.end_stream()

    async def main(url: str) -> ClientHealth:
        client, record = StreamClient(Connection(url)), StreamRecord()
        monitor = HealthMonitor(client)
        monitor.start()
        sending = asyncio.create_task(send(client, record))
        while not record.stamps:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        standing.set()
        flooding.wait(10)
        time.sleep(0.2)  # noqa: ASYNC251
        found = monitor.stop()
        await sending
        await client.aclose()
        return found

    with ScriptedServer({PATH: answer}) as server:
        found = asyncio.run(main(server.url))
    assert found.unread_s is not None
    assert found.unread_s > 0.1
    assert "had not read" in (client_bound(found.model_copy(update={"merged_reads": 0.0})) or "")


@needs_kernel
def test_a_large_request_is_sent_while_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body goes out in slices, the socket's buffer being full in between; all of it arrives."""
    monkeypatch.setattr(kernellink, "WRITE_SLICE", 2**15)
    sizes: list[int] = []

    async def answer(request: Request, reply: Reply) -> None:
        sizes.append(len(request.body))
        await serving(*words(3), STOP, DONE)(request, reply)

    async def main(url: str) -> StreamRecord:
        client, record = StreamClient(Connection(url)), StreamRecord()
        body = b'{"x": "' + b"y" * 5_000_000 + b'"}'
        await client.stream(PATH, body, record, first_token_s=20.0, stall_s=20.0)
        await client.aclose()
        return record

    with ScriptedServer({PATH: answer}) as server:
        record = asyncio.run(main(server.url))
    assert (record.end, record.error) == ("finished", "")
    assert sizes == [5_000_009]


def test_without_kernel_stamps_a_stream_is_measured_all_the_same(program_stamps: None) -> None:
    (record,) = drive(serving(*words(3), STOP, DONE))
    assert (record.end, record.chunks) == ("finished", [1, 2, 3])
