"""The clock of another host against ours, from the round trips of messages. Pure.

A message that leaves here at ``sent``, is stamped ``theirs`` on the other host, and whose answer is
here at ``heard`` says that their clock is ahead of ours by at least ``theirs - heard`` and by at
most ``theirs - sent``, however unlike the two ways are. Several round trips narrow that down to
what all of them allow (K. Marzullo, 1984; the two-way exchange is that of NTP, RFC 5905).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NAMED_S = 1e-3
"""A larger error of a host's clock is named in the result."""
UNGATED_S = 5e-3
"""Beyond this the TTFT of that host is not gated."""
STEADY = 1e-3
"""Clocks of sound machines drift apart by less than this share of the time between."""


class Trip(NamedTuple):
    """One message there and its answer back. Monotonic seconds: ``theirs`` is of the other host."""

    sent: float
    theirs: float
    heard: float


@dataclass(frozen=True)
class Tie:
    """Their clock is ours plus ``offset``, give or take ``error``. Seconds."""

    offset: float
    error: float
    at: float = 0.0
    """By our clock."""


SAME = Tie(0.0, 0.0)
"""A process on this host: all of one host share its monotonic clock."""


class Unsteady(Exception):
    """A clock that cannot be tied: it moved by more than clocks do."""


def tie(trips: Sequence[Trip]) -> Tie:
    """Tie two clocks.

    Raises:
        Unsteady: the round trips contradict one another.
    """
    least = max(trip.theirs - trip.heard for trip in trips)
    most = min(trip.theirs - trip.sent for trip in trips)
    if least > most:
        raise Unsteady(f"its clock moved by {(least - most) * 1e3:.1f} ms while it was read")
    return Tie((least + most) / 2, (most - least) / 2, trips[-1].heard)


def during(before: Tie, after: Tie) -> Tie:
    """Between two ties: their middle, with an error that covers the way from one to the other.

    One offset for the whole time leaves durations on the other host as they are.

    Raises:
        Unsteady: they are further apart than their errors and the drift of sound clocks explain.
    """
    moved = abs(after.offset - before.offset)
    if moved > before.error + after.error + STEADY * abs(after.at - before.at):
        raise Unsteady(f"its clock moved by {moved * 1e3:.1f} ms against ours during the cell")
    return Tie(
        (before.offset + after.offset) / 2, max(before.error, after.error) + moved / 2, after.at
    )
