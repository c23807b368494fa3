"""The kernel's own stamps of what a socket received, on the monotonic scale.

Linux stamps a segment when it arrives (``SO_TIMESTAMPNS``, for TCP since 4.14) and hands the stamp
of the last one over with the bytes. So the stamp is right however late the bytes are read.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Sequence
from functools import cache

SO_TIMESTAMPNS = 35
"""``include/uapi/asm-generic/socket.h``; the ``socket`` module does not name it."""
ANCILLARY = 64
"""Bytes for a stamp and its header."""
STEP_S = 0.2e-3
"""The wall clock moved if it is further off the monotonic one than that: both are slewed alike."""
_TIMESPEC = struct.Struct("@ll")
_TRIES = 20

Ancillary = Sequence[tuple[int, int, bytes]]


@cache
def kernel_stamps() -> bool:
    """Whether this machine's kernel stamps what its TCP sockets receive; tried, once a process."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(listening.getsockname(), 1.0))
        far = stack.enter_context(listening.accept()[0])
        ask_for_stamps(near)
        # the first ones may come before the kernel has switched stamping on
        for _ in range(_TRIES):
            far.send(b"x")
            if near.recvmsg(1, ANCILLARY)[1]:
                return True
            time.sleep(0.001)
    return False


def ask_for_stamps(sock: socket.socket) -> None:
    """From now on ``recvmsg`` of this socket gives a stamp with the bytes."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class ReceiveClock:
    """Brings the kernel's stamps, which are of the wall clock, to the monotonic scale.

    The difference of the two clocks is taken at the start and compared with every read. It only
    changes when someone sets the wall clock: then stamps taken before that moment say nothing any
    more, and the difference is taken anew for those after it.

    Attributes:
        moved_s: the furthest that the wall clock was moved at once; 0 if it never was.
    """

    def __init__(self) -> None:
        self.moved_s = 0.0
        self._trusted_from = 0.0
        self._offset = self._seconds = self._rest = 0.0
        self._set(_take_offset())

    def stamp(self, ancillary: Ancillary, now: float) -> float | None:
        """When the bytes arrived that were read with these data; None where the kernel does not
        say, or its clock was set meanwhile. ``now`` is the monotonic time right after the read."""
        if abs(time.time() - now - self._offset) > STEP_S:
            self._look_closer()
        if not ancillary:
            return None
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        at: float = seconds - self._seconds + (nanoseconds * 1e-9 - self._rest)
        return at if self._trusted_from <= at <= now else None

    def _look_closer(self) -> None:
        # most likely this thread was interrupted between its looks at the two clocks
        offset = _take_offset()
        if abs(offset - self._offset) > STEP_S:
            self.moved_s = max(self.moved_s, offset - self._offset, key=abs)
            self._trusted_from = time.monotonic()
            self._set(offset)

    def _set(self, offset: float) -> None:
        # in two parts, so that seconds since 1970 do not cost the nanoseconds their precision
        self._offset, self._seconds = offset, int(offset)
        self._rest = offset - self._seconds


def _take_offset() -> float:
    """Wall clock less monotonic clock, by the quickest of some looks at both."""
    looks = []
    for _ in range(7):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1] * 1e-9
