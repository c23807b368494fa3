"""Whether this client could keep up while it measured."""

from __future__ import annotations

import asyncio
import gc
import time
from importlib.util import find_spec

from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.result import ClientHealth

TICK_S = 0.01
FROZEN_BY_OTHERS = 1000
"""Objects: someone else keeps theirs out of collection. Python 3.12 does so with 375 of its own."""
MAX_LAG_P99_MS = 25.0
MAX_LAG_MS = 1000.0
MAX_CPU_SHARE = 0.9
MAX_DELAY_P99_MS = 100.0
"""Stamps are taken before, so no figure waits; but a stream that has ended starts again so much
later: 2 % of its time if it lasts 5 s, which is what a busy stream may lose."""


class HealthMonitor:
    """Watches the running event loop between ``start`` and ``stop``, both called on its thread.

    What exists at the start is kept out of garbage collection until the stop, so that a collection
    in between walks only what the measurement made.
    """

    def __init__(self, client: StreamClient | None = None) -> None:
        self._client = client
        self._lags: list[float] = []
        self._pause_s: float | None = None
        self._collecting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._frozen = False
        self._wall = self._cpu = 0.0

    def start(self) -> None:
        """Begins; at the window's opening."""
        self._frozen = gc.get_freeze_count() < FROZEN_BY_OTHERS
        if self._frozen:
            gc.freeze()
        self._pause_s = 0.0
        gc.callbacks.append(self._collected)
        if self._client is not None:
            self._client.forget_delays()
        self._loop = asyncio.get_running_loop()
        self._wall, self._cpu = time.monotonic(), time.thread_time()
        self._schedule()

    def stop(self) -> ClientHealth:
        """Ends, and says how it was. Values that were not observed are None."""
        wall = time.monotonic() - self._wall
        cpu = time.thread_time() - self._cpu
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lags.append(max(0.0, time.monotonic() - self._due))
            gc.callbacks.remove(self._collected)
            if self._frozen:
                gc.unfreeze()
        delays = self._client.delays if self._client is not None else []
        return ClientHealth(
            loop_lag_p99_ms=_p99_ms(self._lags),
            loop_lag_max_ms=max(self._lags) * 1e3 if self._lags else None,
            cpu_share=cpu / wall if wall > 0 and self._wall else None,
            gc_pause_max_ms=None if self._pause_s is None else self._pause_s * 1e3,
            processing_delay_p99_ms=_p99_ms(delays),
            transport=self._client.transport if self._client is not None else None,
        )

    def _schedule(self) -> None:
        self._due = time.monotonic() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._lags.append(max(0.0, time.monotonic() - self._due))
        self._schedule()

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        elif self._pause_s is not None:
            self._pause_s = max(self._pause_s, time.monotonic() - self._collecting_since)


def client_bound(health: ClientHealth) -> str | None:
    """Why the client, not the server, was measured, with the remedy; None if it kept up."""
    found = None
    if _over(health.cpu_share, MAX_CPU_SHARE):
        found = f"client used {health.cpu_share:.0%} of its core (limit {MAX_CPU_SHARE:.0%})"
    elif _over(health.loop_lag_p99_ms, MAX_LAG_P99_MS):
        found = (
            f"event loop lagged {health.loop_lag_p99_ms:.0f} ms at p99 (limit {MAX_LAG_P99_MS:.0f})"
        )
    elif _over(health.loop_lag_max_ms, MAX_LAG_MS):
        found = (
            f"event loop stood still for {health.loop_lag_max_ms:.0f} ms (limit {MAX_LAG_MS:.0f})"
        )
    elif _over(health.processing_delay_p99_ms, MAX_DELAY_P99_MS):
        found = (
            f"client took {health.processing_delay_p99_ms:.1f} ms at p99 to process what arrived "
            f"(limit {MAX_DELAY_P99_MS:.0f})"
        )
    if found is None:
        return None
    faster = "" if find_spec("uvloop") else "install uvloop, "
    return (
        f"client bound: the {found}; {faster}spread the load with --llm-workers, or keep other "
        "work off this machine"
    )


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _p99_ms(seconds: list[float]) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3
