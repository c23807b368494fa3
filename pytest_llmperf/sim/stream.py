"""One request on its way out: a step's tokens in, bytes for the connection out."""

from __future__ import annotations

import asyncio

from pytest_llmperf.sim.faults import Fault
from pytest_llmperf.sim.tokenizer import LONGEST_STEP, text_ring
from pytest_llmperf.sim.truth import RequestTruth
from pytest_llmperf.sim.wire import Job, Stream, Times

_RING = text_ring()
_PLACES = len(_RING) - LONGEST_STEP


class Live:
    """A request between its submission and its end.

    The pacer tells it what happened; the connection's task awaits `started`, then `take`.

    Args:
        job: what was asked for.
        wire: the bytes of its answer.
        number: of the completion request, from 1.
        submitted: when it arrived; monotonic seconds.
        first: tokens of the first chunk, at least; infinite: all in one.
        interval: tokens of every other chunk, at least.
        buffer: bytes that a proxy keeps back before it passes any on; infinite: all.
        zombie: generation goes on when the client is gone.
        watch: faults that may yet happen to it.
        truth: gets what happens.
    """

    __slots__ = (
        "_first_at", "_held", "_last_at", "_least", "_muted", "_opened", "_pending", "_place",
        "_sent_at", "_wake", "_wire", "admitted", "buffer", "cut_off", "done", "job", "made",
        "number", "reason", "started", "submitted", "text", "truth", "watch", "zombie",
    )  # fmt: skip

    def __init__(
        self,
        job: Job,
        wire: Stream,
        number: int,
        submitted: float,
        *,
        first: float = 1,
        interval: float = 1,
        buffer: float = 0,
        zombie: bool = False,
        watch: list[Fault] | None = None,
        truth: RequestTruth | None = None,
    ) -> None:
        self.job = job
        self.number = number
        self.submitted = submitted
        self.zombie = zombie
        self.watch = watch or []
        self.truth = truth
        self.admitted: float | None = None
        self.started = asyncio.Event()
        """Admitted, or ended without."""
        self.made = 0
        """Tokens so far."""
        self.text: list[bytes] = []
        """Of an answer that is not streamed."""
        self.done = False
        self.cut_off = False
        """The connection is to be closed in mid-answer."""
        self.reason = ""
        self._wire = wire
        self._place = number * 7919 % _PLACES
        self._least = (first, interval)
        self._opened = False
        self._held: list[bytes] = []
        self.buffer = buffer
        self._muted = False
        self._pending: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None
        self._first_at = self._last_at = self._sent_at = submitted

    @property
    def times(self) -> Times:
        return Times(self._first_at - self.submitted, self._last_at - self._first_at)

    def admit(self, cached_tokens: int, now: float) -> None:
        """It has left the queue."""
        self.job.cached_tokens = cached_tokens
        self.admitted = self._sent_at = now
        self.started.set()
        if self.truth is not None:
            self.truth.admitted, self.truth.cached_tokens = now, cached_tokens

    def push(self, new: int, finish: str | None, now: float) -> None:
        """A step's tokens for it; ``finish`` is why these are the last ones."""
        place = self._place
        pieces = _RING[place : place + new]
        self._place = (place + new) % _PLACES
        if not self.made:
            self._first_at = now
        self._last_at = now
        self.made += new
        if self.truth is not None:
            self.truth.steps.append((now, new))
        if not self.job.stream:
            self.text += pieces
        elif finish is None and self._least[self._opened] <= 1:
            self._chunk(pieces, now)
        else:
            self._held += pieces
            if finish is None and len(self._held) >= self._least[self._opened]:
                self._chunk(self._release(), now)
        if finish is not None:
            self.close(finish)

    def close(self, reason: str) -> None:
        """The answer is complete."""
        if self.job.stream:
            opening, held = self._opening(), self._release()
            self._send(opening + self._wire.close(held, self.made, reason, self.times))
        self.end(reason)

    def fail(self, event: bytes) -> None:
        """End with an error inside the stream."""
        self._send(event)
        self.end("error")

    def cut(self) -> None:
        """End by closing the connection."""
        self.cut_off = True
        self.end("truncated")

    def mute(self) -> None:
        """Nobody reads any more, so keep nothing."""
        self._muted = True
        self._pending.clear()

    def end(self, reason: str) -> None:
        """Nothing more comes. The first reason stays."""
        if not self.done:
            self.done, self.reason = True, reason
        self.started.set()
        self._wake_up()

    def comment(self, now: float, silence: float) -> None:
        """Send a keep-alive comment if nothing was sent for ``silence`` seconds."""
        if self.started.is_set() and not self.done and now - self._sent_at >= silence:
            self._sent_at = now
            self._send(b":\n\n")

    async def take(self) -> bytes:
        """What is to be sent next; empty when nothing follows."""
        while not self.done and (not self._pending or sum(map(len, self._pending)) < self.buffer):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        return data

    def _chunk(self, pieces: list[bytes], now: float) -> None:
        self._sent_at = now
        data = self._wire.chunk(pieces, self.made)
        self._send(data if self._opened else self._opening() + data)

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._wire.open()

    def _release(self) -> list[bytes]:
        held, self._held = self._held, []
        return held

    def _send(self, data: bytes) -> None:
        if not self._muted:
            self._pending.append(data)
            self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
