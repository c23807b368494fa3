"""Whether this client could keep up while it measured."""

from __future__ import annotations

import asyncio
import gc
import time
from importlib.util import find_spec
from typing import Any

from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.result import ClientHealth

TICK_S = 0.01
FROZEN_BY_OTHERS = 1000
"""Objects: someone else keeps theirs out of collection. Python 3.12 does so with 375 of its own."""
MAX_CPU_SHARE = 0.95
MAX_DELAY_P99_MS = 100.0
"""No figure waits for the processing; but a stream that has ended starts again so much later: 2 %
of its time if it lasts 5 s, which is what a busy stream may lose."""
MAX_MERGED = 0.005
"""Share of reads whose first chunks have a late stamp. Each makes one gap of two: at 1 % they would
be the 99th percentile of the gaps. Means stay what they are."""
MAX_UNREAD_S = 0.1
MAX_UNSTAMPED = 0.01
"""Share of reads without a stamp of the kernel, beyond which stamps are this program's."""
MAX_LAG_P99_MS = 25.0
MAX_LAG_MS = 1000.0
"""Both for stamps of this program, which are as late as the loop."""


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
            self._client.intake.forget()
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
        return ClientHealth(
            loop_lag_p99_ms=_p99_ms(self._lags),
            loop_lag_max_ms=max(self._lags) * 1e3 if self._lags else None,
            cpu_share=cpu / wall if wall > 0 and self._wall else None,
            gc_pause_max_ms=None if self._pause_s is None else self._pause_s * 1e3,
            **(_reading(self._client, wall) if self._client is not None else {}),
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


def _reading(client: StreamClient, wall_s: float) -> dict[str, Any]:
    """How the reading went. What only the kernel's stamps tell is None without them."""
    intake = client.intake
    found: dict[str, Any] = {
        "processing_delay_p99_ms": _p99_ms(list(intake.delays)),
        "transport": client.transport,
        "stamps": "program",
    }
    if client.stamps == "kernel" and intake.unstamped <= MAX_UNSTAMPED * intake.reads:
        found |= {
            "stamps": "kernel",
            "merged_reads": intake.merged / intake.reads if intake.reads else None,
            "unread_s": client.unread() * wall_s / intake.size if intake.size else None,
            "clock_moved_ms": client.clock_moved_s * 1e3,
        }
    return found


def client_bound(health: ClientHealth) -> str | None:
    """Why the client, not the server, was measured, with the remedy; None if it kept up.

    A loop that lags spoils the stamps that this program takes, not the kernel's.
    """
    for host in health.hosts:
        if host.bound:
            return f"{host.name}: {host.bound}"
    by_program = health.stamps != "kernel"
    found = None
    if _over(health.cpu_share, MAX_CPU_SHARE):
        found = f"client used {health.cpu_share:.0%} of its core (limit {MAX_CPU_SHARE:.0%})"
    elif by_program and _over(health.loop_lag_p99_ms, MAX_LAG_P99_MS):
        found = (
            f"event loop lagged {health.loop_lag_p99_ms:.0f} ms at p99 (limit {MAX_LAG_P99_MS:.0f})"
        )
    elif by_program and _over(health.loop_lag_max_ms, MAX_LAG_MS):
        found = (
            f"event loop stood still for {health.loop_lag_max_ms:.0f} ms (limit {MAX_LAG_MS:.0f})"
        )
    elif _over(health.merged_reads, MAX_MERGED):
        found = (
            f"client was late for {health.merged_reads:.1%} of its reads, so that several chunks "
            f"came in one (limit {MAX_MERGED:.1%})"
        )
    elif _over(health.unread_s, MAX_UNREAD_S):
        found = (
            f"client had not read the last {health.unread_s:.2f} s of what came "
            f"(limit {MAX_UNREAD_S:g})"
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
        f"client bound: the {found}; {faster}spread the load over more processes (--llm-workers) "
        "or hosts (--llm-load), or keep other work off this machine"
    )


def _over(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _p99_ms(seconds: list[float]) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3
