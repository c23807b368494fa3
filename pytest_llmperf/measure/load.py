"""The seam between a decode cell and whatever generates its load (this process, or several)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.model.result import ClientHealth


@dataclass(frozen=True)
class Progress:
    """How far a running load is."""

    requested: int
    with_token: int
    """Streams whose current request has had a token, or that had one before and restarted."""
    decoding: int
    """Streams whose current request has had a token and still runs."""
    tokens: int
    """Output tokens so far, all streams."""
    failed: int
    error: str = ""
    """The first failure's words."""


class Load(Protocol):
    """C streams that restart at once when they finish, until closed.

    Order of calls: ``open``, ``start``, any number of ``progress``, ``run_window``, ``finish``.
    """

    async def open(self) -> None:
        """Open one connection per stream, before any clock starts."""
        ...

    async def start(self) -> None:
        """Send all C requests at once."""
        ...

    def progress(self) -> Progress:
        """Cheap, at any time."""
        ...

    async def run_window(self, t0: float, t1: float, edge_limit_s: float) -> None:
        """Let streams run until the window's right edge ``t1`` (monotonic) and on to each stream's
        next arrival, at most ``edge_limit_s`` more; no stream restarts after ``t1``. Client health
        is taken over ``[t0, t1)``. Returns early when a stream has failed."""
        ...

    async def finish(self) -> tuple[list[list[StreamRecord]], ClientHealth]:
        """Cancel what runs, close everything; per stream, its requests in order. Idempotent."""
        ...
