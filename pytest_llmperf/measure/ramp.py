"""When all streams of a decode cell run: the opening of its window."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.measure.events import DoesNotFit, Invalid
from pytest_llmperf.measure.gauges import GaugeWatch
from pytest_llmperf.measure.load import Load, Progress
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.model.result import Capacity

_LOOK_S = 0.02
_SURE = 3


class Ramp:
    """Decides whether every stream has been taken in by the server, and stays so.

    Every stream must have had a token and, where the server's running gauge is known to follow
    our load, that gauge must say that all run and none waits. A restarting request may be missing
    from it, or wait, for a moment; but if somebody waits all the time, the streams take turns.
    """

    def __init__(self, load: Load, watch: GaugeWatch, memory: Memory, concurrency: int) -> None:
        self._load = load
        self._watch = watch
        self._memory = memory
        self._concurrency = concurrency
        self._judged: Gauges | None = None
        self._agrees = False
        self._nobody_waited = False
        """Since the ramp has held."""
        self._one_short = 0
        """So many gauges in a row said that nobody waits, yet one stream was missing."""

    async def settle(
        self,
        settle_s: float,
        limit_s: float,
        over_capacity: Callable[[str], Capacity],
        look: Callable[[Progress], None],
    ) -> None:
        """Return once all streams have run together for ``settle_s`` seconds, or one has failed.

        Raises:
            DoesNotFit: the server had taken in only some of the streams after ``limit_s``.
            Invalid: the same, but it cannot be told how many.
        """
        began = time.monotonic()
        held_since: float | None = None
        while True:
            progress = self._load.progress()
            look(progress)
            if progress.failed:
                return
            now = time.monotonic()
            self._judge(progress)
            if progress.with_token == self._concurrency and self._trust():
                held_since = held_since or now
                if now - held_since >= settle_s and self._nobody_waited:
                    return
            else:
                held_since, self._nobody_waited = None, False
            if now - began > limit_s:
                if progress.with_token == self._concurrency and self._one_short >= _SURE:
                    # a gauge that counts one too few is no reason to turn a cell away
                    self._memory.gauge_moves = False
                    return
                raise self._not_reached(progress, limit_s, over_capacity)
            await asyncio.sleep(_LOOK_S)

    def _judge(self, progress: Progress) -> None:
        gauges = self._watch.latest
        if gauges is None or gauges is self._judged or gauges.running is None:
            return
        self._judged = gauges
        if gauges.running > 0 and self._memory.gauge_moves is None:
            self._memory.gauge_moves = True
        waiting = gauges.waiting or 0
        restarting = progress.with_token - progress.decoding
        self._agrees = gauges.running + restarting >= self._concurrency and waiting <= restarting
        self._nobody_waited |= waiting == 0
        short = waiting == 0 and gauges.running == self._concurrency - 1
        self._one_short = self._one_short + 1 if short else 0

    def _trust(self) -> bool:
        if not self._memory.gauge_moves or self._watch.latest is None:
            self._nobody_waited = True
            return True
        return self._agrees

    def _not_reached(
        self, progress: Progress, limit_s: float, over_capacity: Callable[[str], Capacity]
    ) -> Exception:
        gauges = self._watch.latest if self._memory.gauge_moves else None
        admitted = progress.decoding
        if gauges is not None and gauges.running is not None:
            admitted = min(gauges.running, self._concurrency)
        if 0 < admitted < self._concurrency:
            reason = f"the server admits {admitted} of {self._concurrency}"
            return DoesNotFit(over_capacity(reason))
        return Invalid(
            f"the load did not settle within {limit_s:.0f} s: {progress.with_token} of"
            f" {self._concurrency} streams had a token, {progress.decoding} were decoding"
            + (f", the server says {gauges.running} run, {gauges.waiting} wait" if gauges else "")
        )
