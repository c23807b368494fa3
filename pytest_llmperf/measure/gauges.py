"""The server's own view of a cell: gauges scraped beside the load, never in its way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pytest_llmperf.engines.base import Engine, Gauges
from pytest_llmperf.measure.events import Invalid

_DRAIN_INTERVAL_S = 0.1
_EDGE_LATENCY_S = 0.05
_EDGE_LATENCY_SHARE = 0.02


@dataclass(frozen=True)
class Scrape:
    """One answer of the server's metrics, and when it was asked for (monotonic seconds)."""

    asked: float
    gauges: Gauges

    @property
    def latency(self) -> float:
        return self.gauges.at - self.asked


@dataclass(frozen=True)
class Edges:
    """The scrapes at both edges of a window of ``seconds``."""

    first: Gauges
    last: Gauges

    @property
    def seconds(self) -> float:
        return self.last.at - self.first.at

    def rose(self, name: str) -> float | None:
        """How much a counter rose; None where it was not reported, or fell."""
        before, after = getattr(self.first, name), getattr(self.last, name)
        if before is None or after is None or after < before:
            return None
        return float(after - before)


class GaugeWatch:
    """Scrapes of one cell. Without metrics every method returns at once and nothing is known."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.scrapes: list[Scrape] = []
        self._answered = False

    @property
    def latest(self) -> Gauges | None:
        """The answer to the last scrape; None if there was none: what was before says nothing."""
        return self.scrapes[-1].gauges if self._answered else None

    async def scrape(self) -> Scrape | None:
        """Ask once."""
        asked = time.monotonic()
        gauges = await self._engine.gauges()
        self._answered = gauges is not None
        if gauges is None:
            return None
        scrape = Scrape(asked, gauges)
        self.scrapes.append(scrape)
        return scrape

    async def scrape_at(self, at: float) -> Scrape | None:
        """Ask once, at a monotonic time."""
        await asyncio.sleep(at - time.monotonic())
        return await self.scrape()

    async def poll(self, interval_s: float) -> None:
        """Scrape again and again, until cancelled or a server turns out to have no metrics.

        One that had some may miss a scrape; what was seen before it must not stand for the rest.
        """
        while True:
            if await self.scrape() is None and not self.scrapes:
                return
            await asyncio.sleep(interval_s)

    async def drain(self, limit_s: float) -> None:
        """Wait until the server reports nothing running and nothing waiting.

        Raises:
            Invalid: it was still busy at the limit.
        """
        deadline = time.monotonic() + limit_s
        while (scrape := await self.scrape()) is not None:
            running, waiting = scrape.gauges.running or 0, scrape.gauges.waiting or 0
            if running == 0 and waiting == 0:
                return
            if time.monotonic() > deadline:
                raise Invalid(
                    f"other traffic on the server: {running} running and {waiting} waiting after"
                    f" {limit_s:g} s without load of ours; stop it, or give it longer"
                )
            await asyncio.sleep(_DRAIN_INTERVAL_S)


def edges(first: Scrape | None, last: Scrape | None, window_s: float) -> Edges | None:
    """Both edges, if both were answered fast enough for their stamps to mean the edges."""
    if first is None or last is None:
        return None
    limit = max(_EDGE_LATENCY_S, _EDGE_LATENCY_SHARE * window_s)
    if first.latency > limit or last.latency > limit:
        return None
    return Edges(first.gauges, last.gauges)
