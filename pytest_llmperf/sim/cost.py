"""What a step costs: smooth curves through a profile's measured grid, physics beyond it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean as mean


def _place(nodes: Sequence[float], x: float) -> tuple[int, float]:
    """Segment of ``nodes`` that holds ``x`` and the fraction along it; clamped to the ends."""
    if x <= nodes[0] or len(nodes) == 1:
        return 0, 0.0
    if x >= nodes[-1]:
        return len(nodes) - 2, 1.0
    i = bisect_right(nodes, x) - 1
    return i, (x - nodes[i]) / (nodes[i + 1] - nodes[i])


def piecewise(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear between nodes, constant below the first, the last segment's slope above the last."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    i = min(bisect_left(xs, x), len(xs) - 1)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [mean(pool) for pool in pools for _ in pool]


@dataclass(frozen=True)
class Surface:
    """A positive quantity over (sequences in the step, cached tokens of each).

    Bilinear in the logarithms of all three, so it passes through every node and is monotone
    between them. Constant outside the grid.
    """

    log_streams: tuple[float, ...]
    log_tokens: tuple[float, ...]
    log_values: tuple[tuple[float, ...], ...]
    """One row per context, one entry per number of streams."""

    @classmethod
    def through(
        cls, streams: Sequence[float], tokens: Sequence[float], values: Sequence[Sequence[float]]
    ) -> Surface:
        """A surface through ``values[context][streams]``; both axes rising."""
        return cls(
            tuple(map(math.log, streams)),
            tuple(math.log(max(count, 1.0)) for count in tokens),
            tuple(tuple(map(math.log, row)) for row in values),
        )

    def at(self, streams: float, tokens: float) -> float:
        """The value for so many streams of so many cached tokens each."""
        i, u = _place(self.log_streams, math.log(streams))
        j, v = _place(self.log_tokens, math.log(max(tokens, 1.0)))
        row = self.log_values[j]
        low = row[i] + (row[i + 1] - row[i]) * u if u else row[i]
        if v:
            row = self.log_values[j + 1]
            low += ((row[i] + (row[i + 1] - row[i]) * u if u else row[i]) - low) * v
        return math.exp(low)


@dataclass(frozen=True)
class StepCost:
    """Seconds of one decode step.

    Beyond the measured concurrency every stream costs what the last ones did (compute-bound);
    beyond the measured context every cached token costs its read (memory-bound).
    """

    surface: Surface
    most_streams: float
    most_tokens: float
    stream_s: float
    """Seconds that one more stream adds, beyond ``most_streams``."""
    token_s: float
    """Seconds that one more cached token of one stream adds, beyond ``most_tokens``."""

    def seconds(self, streams: int, tokens: float) -> float:
        """A step over ``streams`` sequences of on average ``tokens`` cached tokens each."""
        time = self.surface.at(streams, tokens)
        if streams > self.most_streams:
            time += (streams - self.most_streams) * self.stream_s
        if tokens > self.most_tokens:
            time += streams * (tokens - self.most_tokens) * self.token_s
        return time


@dataclass(frozen=True)
class PrefillCost:
    """Seconds to compute a prompt from its start, through the profile's prefill rows."""

    tokens: tuple[float, ...]
    seconds_to: tuple[float, ...]

    def seconds(self, start: int, end: int) -> float:
        """The part of a prompt from token ``start`` to ``end``: later parts attend to more."""
        return piecewise(self.tokens, self.seconds_to, end) - piecewise(
            self.tokens, self.seconds_to, start
        )


@dataclass(frozen=True)
class HostCost:
    """Seconds of host work on a request before the scheduler sees it: parsing, tokenizing."""

    contexts: tuple[float, ...]
    at_once: tuple[float, ...]
    seconds_for: tuple[tuple[float, ...], ...]
    """One row per context, one entry per number of requests at the front end at once."""

    def seconds(self, at_once: int, tokens: int) -> float:
        """For a prompt of ``tokens``, while ``at_once`` requests share the host."""
        j, v = _place(self.contexts, tokens)
        time = piecewise(self.at_once, self.seconds_for[j], at_once)
        if v:
            time += (piecewise(self.at_once, self.seconds_for[j + 1], at_once) - time) * v
        return time


def tokens_per_step(p: float, drafts: int) -> float:
    """Mean tokens of a step when each of ``drafts`` tokens is accepted with ``p`` after the last:
    ``1 + p + p^2 + ... + p^drafts``."""
    total = 1.0
    for _ in range(drafts):
        total = 1.0 + p * total
    return total


def acceptance_for(mean: float, drafts: int) -> float:
    """The per-token acceptance that gives ``mean`` tokens per step; clamped to [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, drafts) < mean else (low, middle)
    return high
