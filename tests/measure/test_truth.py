"""Cells measured against servers whose pacing is known: the numbers are the truth.

The windows of this module run at the same time, so that it takes seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure import validity
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, ServerInfo, Status
from pytest_llmperf.model.settings import Workload
from tests.measure.paced import (
    QUICK,
    FakeEngine,
    Paced,
    gauges_of,
    measuring,
    quick_threads,
    tokens_of,
)

LATE_S = 0.02
"""A scenario whose bytes came later than this is no test of what is made of them."""
PROMPT_S = 0.005
"""Most bytes are stamped within this."""


@dataclass
class Scenario:
    """One cell against one server."""

    paced: Paced
    concurrency: int
    max_tokens: int = 4096
    engine: Callable[[Paced], FakeEngine] = lambda paced: FakeEngine(
        gauges_of(paced), counts=tokens_of
    )
    speculative: bool = False
    duration_s: float = 3.0


SCENARIOS = {
    # period 1 s: 0.1 s to the first of 10 chunks, one every 0.1 s, 4 tokens each
    "restarts": Scenario(Paced(ttft=0.1, step=0.1, per_chunk=4), 4, max_tokens=40),
    "slow-steps": Scenario(Paced(ttft=0.3, step=0.44, per_chunk=3), 8),
    "estimated": Scenario(
        Paced(ttft=0.1, step=0.1, per_chunk=4, usage="final"),
        2,
        max_tokens=40,
        engine=lambda paced: FakeEngine(counts=tokens_of),
    ),
    "role": Scenario(Paced(ttft=0.3, step=0.02, role_at=0.0), 1),
    "slow-metrics": Scenario(
        Paced(step=0.02),
        2,
        engine=lambda paced: FakeEngine(gauges_of(paced), slow_s=2.0, counts=tokens_of),
        duration_s=2.0,
    ),
    # the scout is request 0 and 1; the streams' first tokens come after 0.1 s, one after 0.9 s
    "staggered": Scenario(
        Paced(ttft=lambda n: 0.9 if n == 4 else 0.1),
        4,
        engine=lambda paced: FakeEngine(counts=tokens_of),
    ),
    "buffered": Scenario(Paced(step=0.005, flush=65), 2, speculative=True),
    "warm": Scenario(Paced(step=0.02, cached=lambda seen, n: n - 5 if seen else 0), 2),
}


@dataclass(frozen=True)
class Measured:
    """A measurement, the server's own log, and the window's edges (monotonic seconds)."""

    found: Measurement
    paced: Paced
    t0: float
    t1: float
    streams: Sequence[Sequence[StreamRecord]]

    @property
    def codes(self) -> set[str]:
        return {notice.code for notice in self.found.warnings}

    def stamping(self) -> list[float]:
        """Seconds from when the server wrote a chunk to our stamp of it, for those in the window;
        what load does to the server is not in it. None where it holds chunks back."""
        if self.paced.flush > 1:
            return []
        by_number = {one.number: one for one in self.paced.log}
        return [
            stamp - written
            for record in (record for stream in self.streams for record in stream if record.tail)
            for (written, _), stamp in zip(
                by_number[_number_of(record)].tokens, record.stamps, strict=False
            )
            if self.t0 <= stamp < self.t1
        ]

    def delays(self) -> list[float]:
        """Of what came in the window, and next to its edges: seconds from when a chunk was due to
        our stamp of it, and from our request to its arrival."""
        by_number = {one.number: one for one in self.paced.log}
        found = []
        for record in (record for stream in self.streams for record in stream if record.tail):
            log = by_number[_number_of(record)]
            events = [(record.sent_at or 0.0, log.arrived)]
            if self.paced.flush == 1:
                due = (log.first_due + k * self.paced.step for k in range(len(record.stamps)))
                events += zip(due, record.stamps, strict=True)
            found += [b - a for a, b in events if self.t0 - 1 <= b < self.t1 + 1]
        return found

    @property
    def late(self) -> float:
        """The longest delay; infinite where there was no window."""
        return max(self.delays(), default=0.0) if self.streams else inf

    @property
    def kept_pace(self) -> bool:
        """Not so if now and then something came late: that is a busy machine. If most came late,
        it is the client, and a test has to fail."""
        return self.late < LATE_S or median(self.stamping() or [0.0]) >= PROMPT_S

    def true_tok_s(self) -> tuple[float, float]:
        """The least and the most that a client sees to which every byte comes up to ``late``
        seconds after it was written."""
        late = self.late
        least, most = (
            sum(one.tokens_before(end) - one.tokens_before(start) for one in self.paced.log)
            for start, end in ((self.t0, self.t1 - late), (self.t0 - late, self.t1))
        )
        return least / (self.t1 - self.t0), most / (self.t1 - self.t0)

    def true_decoding(self) -> float:
        spans = ((one.tokens[0][0], one.tokens[-1][0]) for one in self.paced.log if one.tokens)
        return self._overlap(spans)

    def true_in_flight(self) -> float:
        return self._overlap((one.arrived, one.ended) for one in self.paced.log)

    def true_ttft_ms(self) -> float:
        streams = self.paced.log[2:]
        return 1e3 * median(one.tokens[0][0] - one.arrived for one in streams if one.tokens)

    def true_itl_ms(self) -> float:
        """Median over requests of (last - first) / tokens after the first, inside the window."""
        found = []
        for one in self.paced.log:
            inside = [entry for entry in one.tokens if self.t0 <= entry[0] < self.t1]
            if len(inside) > 1:
                (t, n), (u, m) = inside[0], inside[-1]
                found.append((len(inside) >= 10 and u - t >= 1, (u - t) / (m - n)))
        full = [itl for long, itl in found if long]
        return 1e3 * median(full or [itl for _, itl in found])

    def true_completed(self) -> int:
        return sum(
            one.ended < inf and self.t0 <= one.tokens[-1][0] < self.t1 for one in self.paced.log
        )

    def _overlap(self, spans: Iterable[tuple[float, float]]) -> float:
        inside = (max(0.0, min(end, self.t1) - max(start, self.t0)) for start, end in spans)
        return sum(inside) / (self.t1 - self.t0)


def _number_of(record: StreamRecord) -> int:
    """The server's number of a request, which its text repeats."""
    (number, *_) = re.findall(r"of stream (\d+)", record.tail)
    return int(number)


Seen = tuple[float, float, Sequence[Sequence[StreamRecord]]]
"""Edges of a window, and the records of its load."""


async def measure(scenario: Scenario, seen: dict[int, Seen]) -> Measured:
    with measuring(
        scenario.paced,
        engine=scenario.engine(scenario.paced),
        workload=Workload(max_tokens=scenario.max_tokens),
        timing=replace(QUICK, duration_s=scenario.duration_s),
        info=ServerInfo(engine="fake", model="m", speculative=scenario.speculative),
    ) as (measurer, server):
        found = await measurer.decode(Cell("decode", 512, scenario.concurrency))
        port = int(server.url.rpartition(":")[2])
        return Measured(found, scenario.paced, *seen.get(port, (0.0, inf, [])))


def measure_all(scenarios: Sequence[Scenario]) -> list[Measured]:
    """Measure scenarios at the same time.

    A busy test machine may make this client slow, which would rightly invalidate a cell; what the
    numbers are then is what these tests are about.
    """
    seen: dict[int, Seen] = {}
    run_window = LocalLoad.run_window

    async def noting(self: LocalLoad, t0: float, t1: float, limit: float) -> None:
        seen[self._client._root.port or 0] = (t0, t1, self._streams)
        await run_window(self, t0, t1, limit)

    async def later(index: int) -> Measured:
        await asyncio.sleep(0.3 * index)
        return await measure(scenarios[index], seen)

    async def together() -> list[Measured]:
        return await asyncio.gather(*map(later, range(len(scenarios))))

    with pytest.MonkeyPatch.context() as patch, quick_threads():
        patch.setattr(validity, "client_bound", lambda health: None)
        patch.setattr(LocalLoad, "run_window", noting)
        return asyncio.run(together())


class Table(dict[str, Measured]):
    """The measurements by scenario; a test that asks for one that could not be made is skipped."""

    def __missing__(self, name: str) -> Measured:
        pytest.skip(f"{name}: this machine is too busy to keep a pace to {LATE_S * 1e3:.0f} ms")


@pytest.fixture(scope="module")
def measured() -> Table:
    """Every scenario's measurement. Client and servers are threads of this process: where a busy
    machine did not let one of them run in time, the scenario is measured again."""
    table = Table()
    for _ in range(3):
        left = [name for name in SCENARIOS if name not in table]
        found = measure_all([deepcopy(SCENARIOS[name]) for name in left]) if left else []
        table |= {n: cell for n, cell in zip(left, found, strict=True) if cell.kept_pace}
    return table


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_valid(measured: Table, name: str) -> None:
    assert (measured[name].found.status, measured[name].found.reason) == (Status.VALID, "")


@pytest.mark.parametrize("name", ["restarts", "slow-steps", "estimated", "role", "staggered"])
def test_every_value_is_within_1_percent_of_the_truth(measured: Table, name: str) -> None:
    """Tok/s, ITL, TTFT, streams in flight and decoding, and completed requests, against what the
    server wrote down and, beyond the percent, how late its bytes were on this machine."""
    cell = measured[name]
    found = cell.found
    late = cell.late
    assert median(cell.stamping()) < PROMPT_S, (
        "stamps are those of the arrival, not of a later moment"
    )
    least, most = cell.true_tok_s()
    assert least * 0.99 <= (found.total_tok_s or 0.0) <= most * 1.01
    request_s = 0.9 if found.completed else cell.t1 - cell.t0
    moved = 2 * late * ((found.completed or 0) + found.concurrency) / (cell.t1 - cell.t0)
    assert found.itl_ms == pytest.approx(cell.true_itl_ms(), rel=0.01 + late / request_s)
    assert found.ttft_ms == pytest.approx(cell.true_ttft_ms(), rel=0.01, abs=1e3 * late)
    assert found.decoding_avg == pytest.approx(cell.true_decoding(), rel=0.01, abs=moved)
    assert found.in_flight_avg == pytest.approx(cell.true_in_flight(), rel=0.01, abs=moved)
    assert found.completed == pytest.approx(cell.true_completed(), abs=1)


def test_streams_that_restart_inside_the_window(measured: Table) -> None:
    """Four streams, each 40 tokens a second in ten chunks and 0.1 s to the first."""
    found = measured["restarts"].found
    assert found.total_tok_s == pytest.approx(160, rel=0.1)
    assert found.itl_ms == pytest.approx(25, rel=0.05)
    assert found.completed == pytest.approx(12, abs=1)
    assert found.tokens_per_chunk == pytest.approx(4)
    assert found.token_source == "usage"
    assert found.total_tok_s is not None
    assert found.decoding_avg is not None
    assert found.busy_tok_s == pytest.approx(found.total_tok_s * 4 / found.decoding_avg)
    assert "restart-gaps" in measured["restarts"].codes


def test_steps_of_440_ms(measured: Table) -> None:
    """The slowest step in the published reports: 6.8 of them fit into the window."""
    found, late = measured["slow-steps"].found, measured["slow-steps"].late
    assert found.total_tok_s == pytest.approx(8 * 3 / 0.44, rel=0.01 + late / 3)
    assert found.itl_ms == pytest.approx(440 / 3, rel=0.01 + late / 2.6)
    assert found.itl_few
    assert "total_tok_s" not in found.std_errors


def test_totals_told_at_the_end_scale_the_chunks(measured: Table) -> None:
    found = measured["estimated"].found
    assert (found.token_source, found.usage_mode) == ("estimated", "final")
    assert found.tokens_per_chunk == pytest.approx(4)


def test_c1_a_role_chunk_is_no_token(measured: Table) -> None:
    """C1: role at 0 ms, text at 300 ms."""
    found = measured["role"].found
    assert found.ttft_ms == pytest.approx(300, rel=0.1, abs=1e3 * measured["role"].late)
    assert found.itl_ms == pytest.approx(20, rel=0.05)


def test_c7_a_slow_scrape_is_outside_the_denominator(measured: Table) -> None:
    """C7: metrics that take as long as the window."""
    found = measured["slow-metrics"].found
    assert found.measured_s == pytest.approx(2.0)
    least, most = measured["slow-metrics"].true_tok_s()
    assert least * 0.99 <= (found.total_tok_s or 0.0) <= most * 1.01
    assert found.server.generated_tok_s is None


def test_c8_the_window_opens_when_all_streams_decode(measured: Table) -> None:
    """C8: one of four starts 0.8 s late."""
    found, late_ms = measured["staggered"].found, 1e3 * measured["staggered"].late
    assert found.decoding_avg == pytest.approx(4)
    assert found.ttft_p99_ms == pytest.approx(900, rel=0.1, abs=late_ms)
    assert found.ttft_ms == pytest.approx(100, rel=0.3, abs=late_ms)


def test_c16_a_buffering_proxy(measured: Table) -> None:
    """C16: 65 frames a flush; no small number for ITL, none at all."""
    found = measured["buffered"].found
    assert (found.itl_ms, found.ttft_ms, found.per_request_tok_s) == (None, None, None)
    assert "buffered" in measured["buffered"].codes


def test_a_warm_prompt_is_seen_to_be_warm(measured: Table) -> None:
    assert measured["warm"].found.ttft_warm is True
    assert measured["role"].found.ttft_warm is None


def test_all_streams_share_one_prompt_of_the_right_length(measured: Table) -> None:
    for name in SCENARIOS:
        cell = measured[name]
        assert len(cell.paced.prompts) == 1, name
        assert cell.found.prompt_tokens == pytest.approx(512, abs=8), name


def test_c21_wall_time_is_metadata_only(measured: Table) -> None:
    """C21: the only wall time is ``started``, with its zone."""
    assert all(measured[name].found.started.endswith("+00:00") for name in SCENARIOS)


def test_c11_there_is_no_connection_limit() -> None:
    """C11: 128 streams are open at once, and none waits for a connection."""
    (cell,) = measure_all([Scenario(Paced(ttft=0.5, step=0.5), 128, duration_s=1.0)])
    assert cell.found.reason == ""
    assert cell.paced.peak == 128
    assert cell.found.in_flight_avg == pytest.approx(128)
    assert cell.found.decoding_avg == pytest.approx(128)
    assert cell.found.server.running_mean == pytest.approx(128)
