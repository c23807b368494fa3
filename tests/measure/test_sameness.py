"""The same streams from this process, from two, and from a host over ssh: each gives the server's
own numbers, by its own log, however late a busy machine lets it write."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.crew import LOCAL, Crew
from pytest_llmperf.measure.load import Load
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.measure.remoteload import RemoteLoad
from pytest_llmperf.measure.window import measure_window
from pytest_llmperf.model.result import ClientHealth
from pytest_llmperf.model.settings import Connection
from tests.measure.paced import PATH, Logged, Paced, quick_threads
from tests.measure.test_workers import BODY, all_decode
from tests.support.scripted import ScriptedServer
from tests.support.sshd import running_sshd, why_missing

STREAMS, STEP_S, PER_CHUNK, SECONDS = 8, 0.02, 2, 2.0
RATE = STREAMS * PER_CHUNK / STEP_S
PROMPT_S = 0.005
"""Most chunks are stamped within this after they were written."""


@pytest.fixture(params=["one process", "two processes", "ssh"])
def specs(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The processes of the load; none for this one."""
    if request.param != "ssh":
        yield [] if request.param == "one process" else [LOCAL] * 2
        return
    if why := why_missing():
        pytest.skip(why)
    with running_sshd() as host:
        yield [host.spec(sys.executable)] * 2


def make_load(crew: Crew, url: str, specs: list[str]) -> Load:
    limits = {"first_token_s": 20.0, "stall_s": 20.0}
    if specs:
        return RemoteLoad(crew.pool, specs, Connection(url), PATH, [BODY] * STREAMS, **limits)
    return LocalLoad(Connection(url), PATH, [BODY] * STREAMS, **limits)


def test_every_load_sees_what_the_server_wrote(specs: list[str]) -> None:
    """Each chunk with its count, stamped after it was written and, but for a few, at once; each
    TTFT; and the tokens of the window."""
    paced = Paced(ttft=0.1, step=STEP_S, per_chunk=PER_CHUNK)
    with (
        ScriptedServer({PATH: paced}) as server,
        closing(Crew(load=specs)) as crew,
        quick_threads(),
    ):

        async def main() -> tuple[list[list[StreamRecord]], ClientHealth, float, float]:
            load = make_load(crew, server.url, specs)
            try:
                await load.open()
                await load.start()
                await all_decode(load, STREAMS)
                t0 = time.monotonic() + 0.2
                await asyncio.sleep(t0 - time.monotonic())
                await load.run_window(t0, t0 + SECONDS, 5.0)
            finally:
                records, health = await load.finish()
            return records, health, t0, t0 + SECONDS

        records, health, t0, t1 = asyncio.run(main())
    error_s = max((host.clock_error_ms or 0.0 for host in health.hosts), default=0.0) / 1e3
    pairs = [(record, log_of(paced, record)) for stream in records for record in stream]
    assert len(pairs) == STREAMS
    late, edges = [], [0.0]
    for record, log in pairs:
        assert record.sent_at is not None
        assert record.tokens == [tokens for _, tokens in log.tokens[: len(record.tokens)]]
        assert record.sent_at <= log.arrived + error_s
        waits = [at - written for at, (written, _) in zip(record.stamps, log.tokens, strict=False)]
        late += waits
        for at, wait in zip(record.stamps, waits, strict=True):
            if min(abs(at - t0), abs(at - t1)) < 0.5:
                edges.append(wait)
    assert min(late) >= -error_s - 1e-4
    assert median(late) < PROMPT_S + error_s
    ttfts = [record.stamps[0] - (record.sent_at or 0.0) for record, _ in pairs]
    true = [log.tokens[0][0] - log.arrived for _, log in pairs]
    assert min(a - b for a, b in zip(ttfts, true, strict=True)) >= -1e-4
    # the server's thread may get to a request late on a busy machine: only the least is the load's
    assert min(a - b for a, b in zip(ttfts, true, strict=True)) < 4 * PROMPT_S
    window = measure_window(count(records).streams, t0, t1)
    written = sum(log.tokens_before(t1) - log.tokens_before(t0) for _, log in pairs)
    assert abs(window.tokens - written) <= 2 * RATE * (max(edges) + error_s) + 1


def log_of(paced: Paced, record: StreamRecord) -> Logged:
    """The server's log of a request, which it calls r0, r1, …"""
    return next(log for log in paced.log if f"r{log.number}" == record.id)
