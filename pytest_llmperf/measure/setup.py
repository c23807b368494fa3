"""What every cell of a session is measured with. Frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.engines.base import Engine
from pytest_llmperf.measure.crew import Crew
from pytest_llmperf.measure.events import Listener
from pytest_llmperf.measure.load import Load
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.measure.remoteload import RemoteLoad
from pytest_llmperf.model.capacity import kv_budget
from pytest_llmperf.model.choices import CapacityMode
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Capacity, ServerInfo
from pytest_llmperf.model.settings import Connection, Timing, Workload


@dataclass(frozen=True)
class Setup:
    """The server, what is asked of it, and who listens."""

    engine: Engine
    server: ServerInfo
    connection: Connection
    workload: Workload
    timing: Timing
    capacity_mode: CapacityMode
    kv_tokens: int | None
    listener: Listener
    crew: Crew
    """Who generates a decode cell's load."""

    def make_load(self, path: str, bodies: Sequence[bytes], first_token_s: float) -> Load:
        """Streams that send these bodies."""
        if specs := self.crew.pick(len(bodies)):
            return RemoteLoad(
                self.crew.pool,
                specs,
                self.connection,
                path,
                bodies,
                first_token_s=first_token_s,
                stall_s=self.timing.stall_s,
            )
        return LocalLoad(
            self.connection,
            path,
            bodies,
            first_token_s=first_token_s,
            stall_s=self.timing.stall_s,
        )

    def over_capacity(self, cell: Cell, reason: str) -> Capacity:
        """What a decode cell that turned out not to fit would have needed."""
        return Capacity(
            needs=cell.concurrency * (cell.context + self.workload.max_tokens),
            budget=kv_budget(self.server, self.kv_tokens),
            reason=reason,
        )
