"""What goes wrong, as a spec says it, and which of it holds when. Pure: the server does it.

Faults are written ``fault=KIND[:VALUE][@WHEN[,WHEN]]`` and may be repeated. WHEN is
``request:2`` (the second completion request; also ``2+`` and ``2-5``), ``token:50`` (once the
request has made 50 tokens), ``total:5000`` (once the server has) or ``time:3`` (seconds after the
server came up). Several must all hold; without any the fault always holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pytest_llmperf.sim.values import Band, read_count, read_counts, read_positive

FaultKind = Literal[
    "crash", "hang", "stall", "http", "error", "truncate", "stop", "hold", "buffer",
    "no_usage", "wrong_usage", "zombie", "no_metrics", "no_gauges", "wrong_gauges",
]  # fmt: skip

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "crash": "the process exits at once",
        "hang": "the process stops answering anything, connections stay open",
        "stall": "VALUE seconds without a step",
        "http": "requests are refused with status VALUE (429, 500, 503)",
        "error": "an error object in the stream, status 200",
        "truncate": "the connection is cut in mid-stream",
        "stop": "the request ends early with finish_reason stop",
        "hold": "tokens come in chunks of VALUE, or (without) all at the end",
        "buffer": "a proxy that passes on VALUE bytes at a time, or (without) all at the end",
        "no_usage": "usage is never sent",
        "wrong_usage": "usage counts are multiplied by VALUE",
        "zombie": "generation goes on after the client has gone",
        "no_metrics": "/metrics answers 404",
        "no_gauges": "/metrics lacks the gauges and counters of requests and KV",
        "wrong_gauges": "gauges and counters are multiplied by VALUE",
    }
)
"""Kind -> what happens."""

_NEEDS_VALUE = {"stall", "http", "wrong_usage", "wrong_gauges"}
_TAKES_VALUE = _NEEDS_VALUE | {"hold", "buffer"}
# hooks that these happen at know no request or no token
_WHEN = {
    "http": {"request", "time", "total"},
    "buffer": {"request"},
    "hold": {"request"},
    "no_usage": {"request"},
    "wrong_usage": {"request"},
    "zombie": {"request"},
    "no_metrics": {"time", "total"},
    "no_gauges": {"time", "total"},
    "wrong_gauges": {"time", "total"},
}
_ANY_WHEN = {"request", "token", "total", "time"}
EVENTS = frozenset({"crash", "hang", "stall", "error", "truncate", "stop"})
"""Kinds that happen once; the others are properties of a request or of /metrics."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and when; a limit that is None always holds."""

    kind: FaultKind
    value: float | None = None
    requests: Band | None = None
    token: int | None = None
    total: int | None = None
    time: float | None = None


def parse_fault(text: str) -> Fault:
    """Read ``KIND[:VALUE][@WHEN[,WHEN]]``.

    Raises:
        ValueError: says what is wrong and what there is.
    """
    what, _, when = text.partition("@")
    kind, _, value = what.partition(":")
    if kind not in FAULTS:
        raise ValueError(f"no fault {kind!r}; there are {', '.join(FAULTS)}")
    if (not value and kind in _NEEDS_VALUE) or (value and kind not in _TAKES_VALUE):
        raise ValueError(f"{kind} takes {'a' if kind in _NEEDS_VALUE else 'no'} value")
    limits: dict[str, Any] = {}
    for part in filter(None, when.split(",")):
        name, _, limit = part.partition(":")
        allowed = _WHEN.get(kind, _ANY_WHEN)
        if name not in allowed:
            raise ValueError(f"{kind} happens at {', '.join(sorted(allowed))}, not at {part!r}")
        if name == "request":
            limits["requests"] = read_counts(limit)
        else:
            limits[name] = read_positive(limit) if name == "time" else read_count(limit)
    number = read_positive(value) if value else None
    if kind == "http" and number not in (429, 500, 503):
        raise ValueError("http refuses with 429, 500 or 503")
    return Fault(kind, number, **limits)  # type: ignore[arg-type]


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
