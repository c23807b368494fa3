"""How starts of a server, moments and texts differ: what is stated, and what one start draws. Pure.

Spreads are standard deviations, as fractions of speed; factors on speed are exp(spread x draw).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_llmperf.sim.values import (
    Band,
    InBand,
    read_bands,
    read_not_negative,
    read_positive,
    read_share,
)

Tails = Literal["normal", "t3"]
Work = Literal["decode", "prefill", "host"]


@dataclass(frozen=True)
class SlowStart:
    """One start in ``1 / share`` is slower by ``fraction``."""

    share: float
    fraction: float


@dataclass(frozen=True)
class Drift:
    """In the first ``seconds`` of a start its speed drifts, and stays where it came to."""

    spread: float
    seconds: float


@dataclass(frozen=True)
class IdleFall:
    """After ``idle`` seconds without a request, ``seconds`` that are slower by ``fraction``."""

    fraction: float
    idle: float
    seconds: float


@dataclass(frozen=True)
class Throttle:
    """A ``share`` of all slices of ``seconds`` is slower by ``fraction``."""

    share: float
    fraction: float
    seconds: float


@dataclass(frozen=True)
class Noise:
    """What differs by chance; the defaults change nothing. Fields: ``parameters.PARAMETERS``."""

    seed: int = 0
    start: int = 1
    noise: float = 0.0
    noise_run: float = 0.0
    noise_conc: tuple[InBand, ...] = ()
    noise_cell: tuple[InBand, ...] = ()
    noise_tails: Tails = "normal"
    slow_start: SlowStart | None = None
    drift: Drift | None = None
    idle_fall: IdleFall | None = None
    throttle: Throttle | None = None
    acceptance_spread: float = 0.0

    @property
    def key(self) -> str:
        """Of everything random in this start; the first start of a seed has the seed's own."""
        return f"{self.seed}" if self.start == 1 else f"{self.seed}.{self.start}"


def draw_unit(rng: random.Random, tails: Tails) -> float:
    """A draw of mean 0 and standard deviation 1.

    Student's t of 3 degrees of freedom is ``z / sqrt(chi2_3 / 3)`` and has the variance 3.
    """
    z = rng.gauss(0.0, 1.0)
    if tails == "t3":
        z /= math.sqrt(sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)))
    return z


class Start:
    """One start of a server. What it draws depends on what for, not on when it is asked.

    Args:
        noise: what is stated.
        began: when the server came up, by the clock that `speed` is asked with; seconds.
    """

    def __init__(self, noise: Noise, began: float = 0.0) -> None:
        self._noise = noise
        self._began = began
        self._known: dict[tuple[Work, int, int], float] = {}
        self._slices: dict[int, float] = {}
        self._fallen_until = -math.inf
        self._changes = bool(noise.drift or noise.idle_fall or noise.throttle)
        self._run = math.exp(noise.noise_run * self._unit("run"))
        if (slow := noise.slow_start) and self._chance("slow start") < slow.share:
            self._run *= 1 - slow.fraction
        self._slope = self._random("drift").gauss(0.0, 1.0)

    def speed(self, work: Work, streams: int, context: int, now: float) -> float:
        """The factor on the speed of some work.

        Args:
            streams: requests that are in it at once.
            context: tokens of their prompt.
        """
        octaves = (work, _octave(streams), _octave(context))
        speed = self._known.get(octaves)
        if speed is None:
            speed = self._known[octaves] = self._run * self._steady(*octaves)
        return speed * self._passing(now) if self._changes else speed

    def wake(self, idle_s: float, now: float) -> None:
        """A request comes after so many seconds without any."""
        fall = self._noise.idle_fall
        if fall and idle_s >= fall.idle:
            self._fallen_until = now + fall.seconds

    def _steady(self, work: Work, streams: int, context: int) -> float:
        """What stays all along: of the concurrency, and of the cell and the kind of work."""
        noise = self._noise
        conc = _spread(noise.noise_conc, streams) if work != "prefill" else 0.0
        cell = _spread(noise.noise_cell, streams)
        return math.exp(
            (conc and conc * self._unit("conc", streams))
            + (cell and cell * self._unit("cell", work, streams, context))
        )

    def _passing(self, now: float) -> float:
        """What comes and goes."""
        noise, seconds = self._noise, now - self._began
        speed = 1.0
        if drift := noise.drift:
            speed *= math.exp(drift.spread * self._slope * min(1.0, seconds / drift.seconds))
        if noise.idle_fall and now < self._fallen_until:
            speed *= 1 - noise.idle_fall.fraction
        if throttle := noise.throttle:
            number = int(seconds / throttle.seconds)
            if number not in self._slices:
                slow = self._chance("throttle", number) < throttle.share
                self._slices[number] = 1 - throttle.fraction if slow else 1.0
            speed *= self._slices[number]
        return speed

    def _random(self, *what: object) -> random.Random:
        return random.Random(f"{self._noise.key} {what}")

    def _unit(self, *what: object) -> float:
        return draw_unit(self._random(*what), self._noise.noise_tails)

    def _chance(self, *what: object) -> float:
        return self._random(*what).random()


def _octave(count: int) -> int:
    """The nearest power of two's exponent: a stream that starts anew leaves no cell."""
    return round(math.log2(max(count, 1)))


def _spread(spreads: tuple[InBand, ...], octave: int) -> float:
    return next((s.value for s in spreads if 2**octave in s.band), 0.0)


def read_spread(text: str) -> tuple[InBand, ...]:
    """``0.02``, or by concurrency ``1:0.03,2+:0.01``."""
    return read_bands(text) if ":" in text else (InBand(Band(0), read_not_negative(text)),)


def read_tails(text: str) -> Tails:
    """``normal`` or ``t3``."""
    if text not in ("normal", "t3"):
        raise ValueError("there are normal and t3")
    return "t3" if text == "t3" else "normal"


def reader(kind: Callable[..., Any], *wanted: str) -> Callable[[str], Any]:
    """Of a value written ``0.1:0.04``: what it wants are a ``share`` or ``fraction``, or
    ``seconds``."""

    def read(text: str) -> Any:
        parts = text.split(":")
        if len(parts) != len(wanted):
            raise ValueError(f"{':'.join(wanted).upper()} is wanted")
        return kind(
            *(
                (read_positive if what in ("idle", "seconds") else read_share)(part)
                for what, part in zip(wanted, parts, strict=True)
            )
        )

    return read
