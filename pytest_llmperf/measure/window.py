"""What happened inside a time window, from stamped arrivals. Pure arithmetic.

Times are monotonic seconds. A request's cumulative token curve is 0 before its first token, a
straight line between arrivals and flat after the last. A first chunk of one token, or of more than
the later ones have, is a jump at its arrival. One of several tokens, as all have, was made token by
token at the request's own pace: a jump of one where the first was made, and a line from there.
Tokens of a window ``[t0, t1)`` are differences of the curves at its edges, so the windows of any
partition add up to the whole, and a slow step does not cost a whole step at an edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FULL_ARRIVALS = 10
FULL_SPAN_S = 1.0
_AS_ALL = 1.5
"""A first chunk of that many times the tokens of the later ones is not as they are."""


@dataclass(frozen=True)
class Pace:
    """How a request goes on after its first chunk: seconds a token, and tokens a chunk."""

    seconds: float
    per_chunk: float


@dataclass(frozen=True)
class Curve:
    """One request. ``stamps`` are distinct and rising; arrivals of one read are merged into one.

    ``tokens`` and ``events`` are cumulative at ``stamps``: generated tokens, and arrivals as they
    were sent (before merging).
    """

    sent: float
    stamps: Floats
    tokens: Floats
    events: Floats
    ended: float = inf
    """When it ended at the client; infinity while it runs."""
    finished: bool = False
    """It came to its own end."""
    usual: Pace | None = None
    """Of the cell's other requests."""

    @classmethod
    def of(
        cls,
        sent: float,
        stamps: Sequence[float],
        tokens: Sequence[float],
        ended: float = inf,
        finished: bool = False,
    ) -> Curve:
        """A curve from parallel raw arrivals, equal stamps merged."""
        raw = np.asarray(stamps, dtype=float)
        last = np.append(raw[1:] > raw[:-1], True) if raw.size else np.zeros(0, dtype=bool)
        counted = np.asarray(tokens, dtype=float)
        return cls(
            sent,
            raw[last],
            counted[last],
            np.asarray(np.flatnonzero(last) + 1, dtype=float),
            ended,
            finished,
        )

    @property
    def first(self) -> float:
        """The first arrival; infinity when there was none."""
        return float(self.stamps[0]) if self.stamps.size else inf

    @property
    def decoding_end(self) -> float:
        """The last token of a finished request, never the end of its connection."""
        if not self.stamps.size:
            return self.ended
        return float(self.stamps[-1]) if self.finished else self.ended

    def tokens_before(self, times: Floats) -> Floats:
        """Cumulative tokens just before each of ``times``."""
        out = self._before(times, self.tokens)
        made = self._first_made if self.stamps.size else inf
        early = (times > made) & (times <= self.first)
        if early.any():
            out[early] = np.interp(times[early], [made, self.first], [1.0, self.tokens[0]])
        return out

    @property
    def pace(self) -> Pace | None:
        """Its own, or ``usual`` where it has no second chunk yet."""
        chunks = self.stamps.size - 1
        made = float(self.tokens[-1] - self.tokens[0]) if chunks > 0 else 0.0
        if made <= 0:
            return self.usual
        return Pace(float(self.stamps[-1] - self.stamps[0]) / made, made / chunks)

    @property
    def _first_made(self) -> float:
        """When the first token was made that came with the first chunk."""
        with_first, pace = float(self.tokens[0]), self.pace
        if pace is None or with_first <= 1 or with_first > _AS_ALL * pace.per_chunk:
            return self.first
        return max(self.sent, self.first - pace.seconds * (with_first - 1))

    def events_before(self, times: Floats) -> Floats:
        """Cumulative arrivals just before each of ``times``, interpolated like tokens."""
        return self._before(times, self.events)

    def _before(self, times: Floats, values: Floats) -> Floats:
        if not self.stamps.size:
            return np.zeros(len(times))
        out: Floats = np.interp(times, self.stamps, values)
        out[times <= self.stamps[0]] = 0.0
        return out


Streams = Sequence[Sequence[Curve]]
"""Per stream, its requests in order."""


@dataclass(frozen=True)
class Itl:
    """Mean time between tokens of one request inside a window, seconds a token."""

    seconds: float
    arrivals: int
    span: float

    @property
    def full(self) -> bool:
        """Long enough to stand for the request."""
        return self.arrivals >= FULL_ARRIVALS and self.span >= FULL_SPAN_S


@dataclass(frozen=True)
class Window:
    """Sums over all streams in ``[t0, t1)``; averages are counts of streams or requests."""

    t0: float
    t1: float
    tokens: float
    read_chunks: Floats
    """Arrivals of each read stamped inside, in one stream."""
    read_tokens: Floats
    """Tokens of each."""
    in_flight: float
    decoding: float
    restarting: float
    """Streams between the sending of a restarted request and its first token."""
    peak_decoding: int
    at_peak: float
    """Fraction of the window with that many decoding at once."""
    completed: int
    itls: tuple[float, ...]
    """Seconds a token, one a request; ``itl_few`` when none was long enough."""
    itl_few: bool
    gaps: Floats
    """Single gaps between arrivals of a request, seconds; 0 for arrivals of one read."""

    @property
    def seconds(self) -> float:
        return self.t1 - self.t0

    @property
    def chunks(self) -> int:
        """Arrivals stamped inside."""
        return round(float(self.read_chunks.sum()))


def bin_tokens(streams: Streams, edges: Floats) -> Floats:
    """Tokens of all streams between neighbouring ``edges``."""
    return _bins((curve.tokens_before(edges) for curve in _flat(streams)), edges)


def bin_events(streams: Streams, edges: Floats) -> Floats:
    """Arrivals of all streams between neighbouring ``edges``, interpolated."""
    return _bins((curve.events_before(edges) for curve in _flat(streams)), edges)


def measure_window(streams: Streams, t0: float, t1: float) -> Window:
    """Everything the arrivals say about ``[t0, t1)``."""
    curves = list(_flat(streams))
    restarts = [curve for requests in streams for curve in requests[1:]]
    inside = [_inside(curve, t0, t1) for curve in curves]
    itls, few = _itls(curves, t0, t1)
    peak, at_peak = _peak([(c.first, c.decoding_end) for c in curves], t0, t1)
    seconds = t1 - t0
    return Window(
        t0=t0,
        t1=t1,
        tokens=float(bin_tokens(streams, np.array([t0, t1]))[0]),
        read_chunks=_rises([c.events for c in curves], inside),
        read_tokens=_rises([c.tokens for c in curves], inside),
        in_flight=_overlap(((c.sent, c.ended) for c in curves), t0, t1) / seconds,
        decoding=_overlap(((c.first, c.decoding_end) for c in curves), t0, t1) / seconds,
        restarting=_overlap(((c.sent, min(c.first, c.ended)) for c in restarts), t0, t1) / seconds,
        peak_decoding=peak,
        at_peak=at_peak,
        completed=sum(c.finished and t0 <= c.decoding_end < t1 for c in curves),
        itls=itls,
        itl_few=few,
        gaps=_gaps(curves, t0, t1),
    )


def _flat(streams: Streams) -> Iterable[Curve]:
    return (curve for requests in streams for curve in requests)


def _bins(cumulative: Iterable[Floats], edges: Floats) -> Floats:
    total = np.zeros(len(edges))
    for values in cumulative:
        total += values
    return np.diff(total)


def _inside(curve: Curve, t0: float, t1: float) -> slice:
    low, high = np.searchsorted(curve.stamps, [t0, t1], side="left")
    return slice(int(low), int(high))


def _rises(cumulative: Iterable[Floats], inside: Iterable[slice]) -> Floats:
    """By how much each of the curves rose at each of its arrivals inside."""
    parts = [np.diff(v, prepend=0.0)[part] for v, part in zip(cumulative, inside, strict=True)]
    return np.concatenate([np.zeros(0), *parts])


def _itls(curves: Iterable[Curve], t0: float, t1: float) -> tuple[tuple[float, ...], bool]:
    """Per request (last arrival - first) / tokens after the first chunk, long requests only;
    where none is long, every request with two arrivals, and True."""
    found = []
    for curve in curves:
        inside = _inside(curve, t0, t1)
        if inside.stop - inside.start < 2:
            continue
        stamps, tokens = curve.stamps[inside], curve.tokens[inside]
        span, made = float(stamps[-1] - stamps[0]), float(tokens[-1] - tokens[0])
        if made > 0:
            events = round(float(curve.events[inside.stop - 1] - curve.events[inside.start])) + 1
            found.append(Itl(span / made, events, span))
    full = tuple(itl.seconds for itl in found if itl.full)
    return (full, False) if full else (tuple(itl.seconds for itl in found), bool(found))


def _gaps(curves: Iterable[Curve], t0: float, t1: float) -> Floats:
    parts: list[Floats] = []
    for curve in curves:
        inside = _inside(curve, t0, t1)
        if inside.stop > inside.start:
            events = curve.events[inside]
            merged = np.diff(events, prepend=curve.events[inside.start - 1] if inside.start else 0)
            parts += [np.diff(curve.stamps[inside]), np.zeros(round(float((merged - 1).sum())))]
    return np.concatenate(parts) if parts else np.zeros(0)


def _overlap(spans: Iterable[tuple[float, float]], t0: float, t1: float) -> float:
    return sum(max(0.0, min(end, t1) - max(start, t0)) for start, end in spans)


def _peak(spans: Iterable[tuple[float, float]], t0: float, t1: float) -> tuple[int, float]:
    """The most spans open at once in the window, and the fraction of it with that many."""
    changes = sorted(
        change
        for start, end in spans
        if max(start, t0) < min(end, t1)
        for change in ((max(start, t0), 1), (min(end, t1), -1))
    )
    level = peak = 0
    since, held = t0, 0.0
    for at, step in changes:
        if level == peak:
            held += at - since
        level, since = level + step, at
        if level > peak:
            peak, held = level, 0.0
    return peak, held / (t1 - t0)
