"""One measured request from send to end, as either transport drives it. No input or output here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_llmperf.client.reader import ChunkReader, StreamFailed
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.words import error_words, one_line
from pytest_llmperf.model.redact import redact

LINGER_S = 0.25
"""Seconds after ``[DONE]`` that the end of the HTTP message is waited for, so that the connection
can be used again."""
MAX_ERROR_BODY = 2**16

Arrived = Callable[[float], None]


def _nothing() -> None:
    """Stands in until a transport says how to stop."""


class Exchange:
    """What happens to one request, told by a transport, written into its record.

    The transport calls ``sent``, ``head``, ``body`` and ``eof`` (or ``lost``) with monotonic
    stamps, and someone calls ``check`` now and then for deadlines. Once ``ended``, all further
    calls do nothing. ``abandon`` is called when the request ends before its answer does: the
    transport drops the connection.
    """

    __slots__ = (
        "_deadline",
        "_error",
        "_first_token_s",
        "_idle_s",
        "_on_arrival",
        "_reader",
        "_secrets",
        "_stall_s",
        "abandon",
        "answered",
        "done_at",
        "ended",
        "heard_at",
        "record",
    )

    def __init__(
        self,
        record: StreamRecord,
        *,
        first_token_s: float,
        stall_s: float,
        idle_s: float | None = None,
        on_arrival: Arrived | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        self.record = record
        self.abandon: Callable[[], None] = _nothing
        self.answered = False
        """Whether a byte of the answer has come."""
        self.ended = False
        self.done_at: float | None = None
        self.heard_at = 0.0
        self._first_token_s = first_token_s
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._on_arrival = on_arrival
        self._secrets = secrets
        self._reader = ChunkReader(record)
        self._deadline = float("inf")
        self._error: bytearray | None = None

    def sent(self, at: float) -> None:
        """The first byte of the request goes to the socket now; the clock starts."""
        self.record.sent_at = self.heard_at = at
        self._deadline = at + self._first_token_s

    def head(self, at: float, status: int, location: str = "") -> None:
        """The answer's status and headers are complete."""
        record = self.record
        record.headers_at = self.heard_at = at
        record.status = status
        self.answered = True
        if 300 <= status < 400:
            self._fail(
                at, f"HTTP {status}: the server redirects to {one_line(location)}; use that address"
            )
        elif status >= 400:
            self._error = bytearray()
            self._deadline = min(self._deadline, at + self._stall_s)

    def body(self, at: float, data: bytes) -> None:
        """Bytes of the body."""
        if self.ended:
            return
        if self._error is not None:
            self._error += data
            if len(self._error) > MAX_ERROR_BODY:
                self.eof(at)
            return
        record = self.record
        before = len(record.stamps)
        try:
            self._reader.feed(data, at)
        except StreamFailed as failure:
            self._fail(at, str(failure))
            return
        if len(record.stamps) > before:
            if at > self._deadline:
                self._fail(at, self._late(at))
                return
            self._deadline = at + self._stall_s
            if self._on_arrival is not None:
                self._on_arrival(at)
        self.heard_at = at
        if record.done and self.done_at is None:
            self.done_at = at

    def eof(self, at: float) -> None:
        """The body has ended as HTTP says it may."""
        if self.ended:
            return
        if self._error is not None:
            self._fail(at, self._error_said(bytes(self._error)))
            return
        try:
            self._reader.close()
        except StreamFailed as failure:
            self._fail(at, str(failure))
        else:
            self._end(self.done_at or at, "finished")

    def lost(self, at: float, why: str) -> None:
        """The connection broke, or what came was no HTTP. After ``[DONE]`` that is no failure."""
        if self.done_at is not None:
            self.eof(at)
        elif not self.ended:
            tokens = len(self.record.stamps)
            self._fail(at, f"{why} after {tokens} chunks" if tokens else why)

    def fail(self, at: float, why: str) -> None:
        """The request failed for a reason outside the answer."""
        if not self.ended:
            self._fail(at, why)

    def cancel(self, at: float) -> None:
        """We end it; nothing is wrong."""
        if not self.ended:
            self._end(at, "cancelled")
            self.abandon()

    def check(self, now: float) -> None:
        """Ends the request if one of its limits has passed."""
        if self.ended or self.record.sent_at is None:
            return
        if self.done_at is not None:
            if now - self.done_at > LINGER_S:
                self.eof(now)
                self.abandon()
        elif now > self._deadline:
            if self._error is not None:
                self.eof(now)
            else:
                self._fail(now, self._late(now))
        elif self._idle_s is not None and now - self.heard_at > self._idle_s:
            self._fail(now, f"no byte for {self._idle_s:g} s")

    def _late(self, now: float) -> str:
        if not self.record.stamps:
            limit, what = self._first_token_s, "no token within {:g} s of the request"
        else:
            limit, what = self._stall_s, "stalled: no token for {:g} s"
        silent = now - self.heard_at > limit / 2
        talk = "the connection is silent" if silent else "keep-alives still come"
        return f"{what.format(limit)} ({talk})"

    def _error_said(self, body: bytes) -> str:
        return f"HTTP {self.record.status}: {error_words(body.decode('utf-8', 'replace'))}"

    def _fail(self, at: float, why: str) -> None:
        self.record.error = redact(why, self._secrets)
        self._end(at, "failed")
        self.abandon()

    def _end(self, at: float, end: str) -> None:
        self.ended = True
        self.record.end = end  # type: ignore[assignment]
        self.record.ended_at = at
        self._reader.settle()
