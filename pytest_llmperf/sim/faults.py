"""Which faults hold when. Pure: the server does what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_llmperf.sim.parameters import Fault

EVENTS = frozenset({"crash", "hang", "stall", "error", "truncate", "stop"})
"""Kinds that happen once; the others are properties of a request or of /metrics."""


@dataclass(slots=True)
class Moment:
    """What a fault's limits are compared with."""

    time: float
    """Seconds since the server came up."""
    total: int
    """Tokens the server has generated."""
    request: int | None = None
    """Number of the completion request, from 1; None where no request is concerned."""
    made: int = 0
    """Tokens that request has generated."""


def holds(fault: Fault, at: Moment) -> bool:
    """Whether every limit of a fault is met."""
    return (
        (fault.requests is None or (at.request is not None and at.request in fault.requests))
        and (fault.token is None or (at.request is not None and at.made >= fault.token))
        and (fault.total is None or at.total >= fault.total)
        and (fault.time is None or at.time >= fault.time)
    )


class Faults:
    """All faults of a server.

    Events happen to a request (``request`` or ``token`` is given, or the kind is one of a stream)
    or to the server as a whole; each happens once to whom it concerns.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        faults = tuple(faults)
        self._properties = [f for f in faults if f.kind not in EVENTS]
        events = [f for f in faults if f.kind in EVENTS]
        self._pending = [f for f in events if not _of_request(f)]
        self._of_requests = [f for f in events if _of_request(f)]

    def find(self, kind: str, at: Moment) -> Fault | None:
        """The first fault of a kind, of those that are properties, that holds now."""
        for fault in self._properties:
            if fault.kind == kind and holds(fault, at):
                return fault
        return None

    def concerning(self, request: int) -> list[Fault]:
        """Events that may happen to a request; to be tried by `due` as it goes on."""
        return [f for f in self._of_requests if f.requests is None or request in f.requests]

    def due(self, pending: list[Fault], at: Moment) -> list[Fault]:
        """Take those events out of ``pending`` that happen now."""
        now = [f for f in pending if holds(f, at)]
        for fault in now:
            pending.remove(fault)
        return now

    def server_due(self, at: Moment) -> list[Fault]:
        """Events of the server as a whole that happen now; each is returned once."""
        return self.due(self._pending, at) if self._pending else []

    def times(self) -> list[float]:
        """When to look again although nothing else happens."""
        return [f.time for f in self._pending if f.time is not None]


def _of_request(fault: Fault) -> bool:
    return (
        fault.requests is not None
        or fault.token is not None
        or fault.kind in ("error", "truncate", "stop")
    )
