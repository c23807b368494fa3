"""What a running cell tells the outside: the way it ends early, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Capacity

Step = Literal["drain", "scout", "ramp", "window", "close"]


@dataclass(frozen=True)
class CellProgress:
    """How far the running cell is. Seconds count from the start of the step."""

    cell: Cell
    step: Step
    elapsed_s: float
    left_s: float | None = None
    """At most this long until the step ends; None where nothing says so."""
    tok_s: float | None = None
    """Over the last half second or so; None before there is load."""
    active: int | None = None
    """Streams that are decoding."""
    waiting: int | None = None
    """Requests in the server's queue; None where it does not say."""
    tokens: int = 0

    @property
    def requested(self) -> int:
        """Streams asked for."""
        return self.cell.concurrency


Listener = Callable[[CellProgress], None]


class Invalid(Exception):
    """The cell cannot be measured; the message says why, for people."""


class DoesNotFit(Exception):
    """The server cannot hold the cell."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(capacity.reason)
        self.capacity = capacity
