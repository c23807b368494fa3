"""The seam between a connection's HTTP and the bytes on its socket."""

from __future__ import annotations

from typing import Protocol

WRITE_SLICE = 2**18
"""Bytes that are sent until other links are looked at again."""


class Receiver(Protocol):
    """Who is told what comes over a link."""

    def digest(self, data: bytes | memoryview, at: float) -> None:
        """Bytes that arrived ``at``, monotonic seconds. The view is valid during the call."""
        ...

    def eof(self) -> None:
        """The server will send no more."""
        ...

    def lost(self, error: Exception | None) -> None:
        """The link is closed, for whatever reason."""
        ...


class Link(Protocol):
    """An open connection to the server."""

    def write(self, data: bytes) -> float:
        """Sends it, a large one in parts, between which other links are read. Returns the moment
        right before the first byte is handed to the kernel, as nearly as can be known."""
        ...

    def abort(self) -> None:
        """Closes it at once; what was not sent is dropped."""
        ...

    def unread(self) -> int:
        """Bytes that have arrived and have not been read."""
        ...
