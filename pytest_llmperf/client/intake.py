"""What a transport took in since it was last asked, and how far behind it was."""

from __future__ import annotations

from collections import deque

DELAYS_KEPT = 50_000
READ_SIZE = 2**16
IDLE_S = 0.3e-3
"""Seconds between two reads after which the loop may have waited for the second one."""
_DOUBT = 0.25
"""Of the time since a connection's last read: doubt about when the first chunk of a read came."""


class Intake:
    """Counts of reads.

    A read has one stamp, that of its last bytes. Where it brings several chunks, either the server
    sent them together, or they came one after another while this client was busy elsewhere: such a
    read is *merged*, and its earlier chunks are stamped too late. It is told by how long the loop
    has been busy without a break: nothing that came before that can still have been unread.

    Attributes:
        delays: seconds from the arrival of bytes to the end of their processing, a sample.
        buffer: where a read may lie until it has been worked on, before the next one.
        unstamped: reads that the kernel gave no stamp for, or one that could not be trusted.
    """

    def __init__(self) -> None:
        self.delays: deque[float] = deque(maxlen=DELAYS_KEPT)
        self.buffer = memoryview(bytearray(READ_SIZE))
        self._read_at = 0.0
        self._busy_since = 0.0
        self.forget()

    def forget(self) -> None:
        """Starts all counts anew."""
        self.delays.clear()
        self.reads = self.merged = self.unstamped = self.size = 0

    def note(self, size: int, at: float, now: float) -> None:
        """So many bytes that arrived ``at`` are read ``now``."""
        self.reads += 1
        self.size += size
        if now - at < IDLE_S < now - self._read_at:
            self._busy_since = at
        self._read_at = now

    def note_several(self, at: float, before: float) -> None:
        """The read stamped ``at`` brought several chunks; the connection's last was ``before``."""
        if at - self._busy_since > _DOUBT * (at - before):
            self.merged += 1
