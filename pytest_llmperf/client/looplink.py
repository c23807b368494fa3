"""A link through the event loop's own transport, where the kernel gives no stamps.

Reads are stamped here and laid aside; what they say is worked out a few at a time, with a look at
the sockets in between. So the stamps of a step that all streams share do not wait for the parsing
of one another, as long as there is time for it before the next step.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from math import inf
from typing import Any

from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.link import WRITE_SLICE, Receiver

TURN_S = 50e-6
"""Seconds of parsing until sockets are looked at again."""
UNDIGESTED = 2**20
"""Bytes that may wait to be parsed."""


class LoopLink(asyncio.Protocol):
    """``link.Link`` as the protocol of an asyncio transport."""

    def __init__(
        self, receiver: Receiver, backlog: Backlog, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._receiver = receiver
        self._backlog = backlog
        self._loop = loop
        self._socket: Any = None
        self._unsent: deque[memoryview] = deque()
        self._paused = False

    def write(self, data: bytes) -> float:
        self._unsent.append(memoryview(data))
        at = time.monotonic()
        self._pump()
        return at

    def abort(self) -> None:
        self._unsent.clear()
        if self._socket is not None:
            self._socket.abort()

    def unread(self) -> int:
        return 0

    def _pump(self) -> None:
        # large prompts go out in slices, between which other streams are read
        if not self._unsent or self._paused:
            return
        part = self._unsent.popleft()
        self._socket.write(part[:WRITE_SLICE])
        if len(part) > WRITE_SLICE:
            self._unsent.appendleft(part[WRITE_SLICE:])
        if self._unsent and not self._paused:
            self._loop.call_soon(self._pump)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport
        self._socket.set_write_buffer_limits(high=WRITE_SLICE)

    def data_received(self, data: bytes) -> None:
        self._backlog.lay_aside(self._receiver, data)

    def eof_received(self) -> bool:
        self._backlog.digest()
        self._receiver.eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._backlog.digest()
        self._unsent.clear()
        self._receiver.lost(exc)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()


class Backlog:
    """What the links of one transport have read and not yet worked on."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._reads: deque[tuple[Receiver, bytes, float]] = deque()
        self.size = 0
        """Bytes in it."""
        self._turn: float | None = None
        """The stamp of what is read in this turn of the loop."""
        self._seen: set[Receiver] = set()
        """Who has been read in this turn."""

    def lay_aside(self, receiver: Receiver, data: bytes) -> None:
        """Bytes that were received for someone.

        What sockets hold when a turn of the loop begins is read one after another, and has one
        stamp: none is later for having been read last. Only what a socket yields a second time in
        the same turn may have come meanwhile.
        """
        if self._turn is None or receiver in self._seen:
            self._turn = time.monotonic()
            self._seen.clear()
        self._seen.add(receiver)
        self._intake.unstamped += 1
        self._intake.note(len(data), self._turn, self._turn)
        if not self._reads:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._digest_some, loop)
        self._reads.append((receiver, data, self._turn))
        self.size += len(data)

    def digest(self, limit_s: float = inf) -> None:
        """Work on the reads laid aside: for so many seconds, but on one of them at least."""
        reads, until = self._reads, time.monotonic() + limit_s
        while reads:
            receiver, data, at = reads.popleft()
            self.size -= len(data)
            receiver.digest(data, at)
            if time.monotonic() >= until and self.size <= UNDIGESTED:
                return

    def _digest_some(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        try:
            self.digest(TURN_S)
        finally:
            if self._reads:
                loop.call_soon(self._digest_some, loop)
