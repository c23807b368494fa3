"""A real server seen and measured from within the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx
import pytest

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.engines.prometheus import parse
from pytest_llmperf.measure import measurer
from pytest_llmperf.measure.decode import DecodeCell, Recording
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.model.settings import Connection, Timing, Workload
from pytest_llmperf.server.connect import Connected, connect

T = TypeVar("T")


@asynccontextmanager
async def reach(url: str, key: str | None) -> AsyncIterator[Connected]:
    """Our view of the server."""
    api = ServerApi(Connection(url, api_key=key))
    try:
        yield await connect(api)
    finally:
        await api.aclose()


def ask(url: str, key: str | None, do: Callable[[Connected, httpx.AsyncClient], Awaitable[T]]) -> T:
    """Runs ``do`` with our view of the server, and a plain client of it."""

    async def go() -> T:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        plain = httpx.AsyncClient(base_url=url, headers=headers, timeout=120)
        async with reach(url, key) as found, plain as client:
            return await do(found, client)

    return asyncio.run(go())


async def gauges_of(found: Connected) -> Gauges:
    """One scrape of a server that has metrics."""
    gauges = await found.engine.gauges()
    assert gauges is not None
    return gauges


async def generated_by(client: httpx.AsyncClient) -> float:
    """All tokens the server has generated, by its own count."""
    page = (await client.get("/metrics")).text
    names = ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total")
    total = parse(page, names).total(*names)
    assert total is not None
    return total


async def wait_for_load(found: Connected, running: int, waiting: int) -> Gauges:
    """The gauges once they say so, or the last ones after ten seconds."""
    for _ in range(200):
        gauges = await gauges_of(found)
        if (gauges.running, gauges.waiting) == (running, waiting):
            break
        await asyncio.sleep(0.05)
    return gauges


@dataclass(frozen=True)
class Measured:
    """A decode cell: what is reported, what it was made of, and what the server counted."""

    found: Measurement
    recording: Recording
    generated: float
    """Tokens by the server's own counter, from before the cell to after it."""

    @property
    def records(self) -> list[StreamRecord]:
        return [record for stream in self.recording.records for record in stream]

    @property
    def finished(self) -> list[StreamRecord]:
        return [record for record in self.records if record.end == "finished"]


def measure(url: str, key: str | None, cell: Cell, max_tokens: int) -> Measured:
    """Measure a cell for four seconds."""
    kept: list[Recording] = []

    class Keeping(DecodeCell):
        async def run(self) -> Recording:
            kept.append(await super().run())
            return kept[-1]

    async def go(found: Connected, client: httpx.AsyncClient) -> tuple[Measurement, float]:
        connection = Connection(url, api_key=key)
        one = Measurer(
            ServerApi(connection),
            found.engine,
            found.info,
            connection,
            Workload(max_tokens=max_tokens),
            # the warm-up load of a server start would count as the cell's
            Timing(duration_s=4, settle_s=0.5, warm_load_s=0),
        )
        # what is worked out beforehand does not count
        assert (await one.prefill(Cell("prefill", cell.context))).reason == ""
        before = await generated_by(client)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measurer, "DecodeCell", Keeping)
            measured = await one.decode(cell)
        return measured, await generated_by(client) - before

    found, generated = ask(url, key, go)
    assert found.reason == ""
    return Measured(found, kept[-1], generated)
