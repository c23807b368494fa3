"""A load generated in this process: one task and one connection per stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import inf

from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.health import HealthMonitor
from pytest_llmperf.client.openfiles import allow_connections
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.measure.load import Progress
from pytest_llmperf.model.result import ClientHealth
from pytest_llmperf.model.settings import Connection

EDGE_POLL_S = 0.005


class LocalLoad:
    """``measure.load.Load`` on the running event loop."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        bodies: Sequence[bytes],
        *,
        first_token_s: float,
        stall_s: float,
    ) -> None:
        """
        Args:
            connection: the server.
            path: where requests go, below the server's root.
            bodies: one request body per stream; it is sent again whenever the stream restarts.
            first_token_s: seconds until a request without a token has failed.
            stall_s: seconds without a token, after the first, until a request has failed.
        """
        self._client = StreamClient(connection)
        self._path = path
        self._bodies = bodies
        self._first_token_s = first_token_s
        self._stall_s = stall_s
        self._streams: list[list[StreamRecord]] = [[] for _ in bodies]
        self._tasks: list[asyncio.Task[None]] = []
        self._closing_at = inf
        self._failed = asyncio.Event()
        self._health = ClientHealth()

    async def open(self) -> None:
        allow_connections(len(self._bodies))
        await self._client.open(len(self._bodies))

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run(body, records))
            for body, records in zip(self._bodies, self._streams, strict=True)
        ]

    def progress(self) -> Progress:
        failures = [r for records in self._streams for r in records if r.end == "failed"]
        return Progress(
            requested=len(self._streams),
            with_token=sum(any(r.stamps for r in records) for records in self._streams),
            decoding=sum(
                bool(records and records[-1].stamps and records[-1].end is None)
                for records in self._streams
            ),
            tokens=sum(_tokens(r) for records in self._streams for r in records),
            failed=len(failures),
            error=failures[0].error if failures else "",
        )

    async def run_window(self, t0: float, t1: float, edge_limit_s: float) -> None:
        self._closing_at = t1
        monitor = HealthMonitor(self._client)
        monitor.start()
        try:
            await within(t1 - time.monotonic(), self._failed.wait())
        except asyncio.TimeoutError:
            pass
        finally:
            self._health = monitor.stop()
        limit = t1 + edge_limit_s
        # polled: a callback on every arrival would cost the hot path for one moment's sake
        while not self._failed.is_set() and time.monotonic() < limit and self._short_of(t1):  # noqa: ASYNC110
            await asyncio.sleep(EDGE_POLL_S)

    async def finish(self) -> tuple[list[list[StreamRecord]], ClientHealth]:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        return self._streams, self._health

    async def _run(self, body: bytes, records: list[StreamRecord]) -> None:
        while time.monotonic() < self._closing_at:
            record = StreamRecord()
            records.append(record)
            await self._client.stream(
                self._path,
                body,
                record,
                first_token_s=self._first_token_s,
                stall_s=self._stall_s,
            )
            if record.end != "finished":
                self._failed.set()
                return

    def _short_of(self, t1: float) -> bool:
        """Whether a decoding stream has not arrived at the right edge yet."""
        return any(
            records[-1].stamps and records[-1].stamps[-1] < t1 and records[-1].end is None
            for records in self._streams
            if records
        )


def _tokens(record: StreamRecord) -> int:
    if record.tokens:
        return record.tokens[-1]
    return record.chunks[-1] if record.chunks else 0
