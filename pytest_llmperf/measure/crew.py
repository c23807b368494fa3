"""Who generates the load of a cell: this process alone, or load processes, and how many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil, log

from pytest_llmperf.client.health import client_bound
from pytest_llmperf.measure.pool import LoadPool
from pytest_llmperf.model.result import ClientHealth

LOCAL = "popen"
"""execnet's specification of another process on this host."""
ENOUGH = 0.7
"""Share of a core that a process of the load is to use at most: beyond, another one is added."""
NEAR = 4
"""A cell says what another one needs only if that has at most so many times its streams."""


class Crew:
    """The load processes of a session; the one object that knows what earlier loads cost.

    A number of processes, or a list of them, is what every cell gets. Without either a cell starts
    from this process alone; what loads used, and which could not keep up, says how many the next
    one takes. They stay up, in the pool, until the session closes it.
    """

    def __init__(
        self,
        workers: int | None = None,
        load: Sequence[str] = (),
        cores: int | None = None,
    ) -> None:
        """
        Args:
            workers: processes that generate the load; 1 is this process itself, None: as needed.
            load: execnet specifications of the processes that do so instead.
            cores: of this host; None asks the system.
        """
        self.pool = LoadPool()
        self._load = tuple(load) or ((LOCAL,) * workers if workers and workers > 1 else ())
        self._adapts = workers is None and not load
        self._cores = cores or count_cores()
        self._used: dict[int, float] = {}
        """Streams -> cores that their load took, or would have taken at least."""

    def pick(self, streams: int) -> tuple[str, ...]:
        """The processes for a load of so many streams, as execnet specifications; empty for this
        process alone."""
        if not self._adapts:
            return self._load[:streams]
        needed = min(self._needed(streams), self._cores, streams)
        return (LOCAL,) * needed if needed > 1 else ()

    def learn(self, streams: int, health: ClientHealth) -> None:
        """Note how a load of so many streams fared."""
        used = (health.cpu_share or 0.0) * health.workers
        if client_bound(health):
            used = max(used, 2 * health.workers * ENOUGH)
        self._used[streams] = max(used, self._used.get(streams, 0.0))

    def open(self) -> None:
        """Start the processes that were asked for, so that what is wrong with one is said at once.

        Raises:
            ConfigError: one cannot be had, with what to do.
        """
        self.pool.check(self._load)

    def close(self) -> None:
        """End all processes. Idempotent."""
        self.pool.close()

    def _needed(self, streams: int) -> int:
        near = [(n, used) for n, used in self._used.items() if streams <= NEAR * n]
        if not near:
            return 1
        n, used = min(near, key=lambda known: abs(log(streams / known[0])))
        return ceil(used * streams / n / ENOUGH)


def count_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
