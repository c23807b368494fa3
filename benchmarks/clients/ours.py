"""This project's client, through the load of a decode cell: one process, several, plain asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.clients import Client, script
from benchmarks.clients.simple import BODY
from benchmarks.load import Seen
from pytest_llmperf.client.health import client_bound
from pytest_llmperf.client.loop import run
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.crew import LOCAL
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.measure.pool import LoadPool
from pytest_llmperf.measure.remoteload import RemoteLoad
from pytest_llmperf.measure.window import measure_window
from pytest_llmperf.model.settings import Connection

SETTLE_S = 0.5


async def measure(url: str, streams: int, tokens: int, seconds: float, workers: int) -> Seen:
    body = json.dumps({**BODY, "max_tokens": tokens}).encode()
    connection, path, bodies = Connection(url), "/v1/chat/completions", [body] * streams
    limits = {"first_token_s": 60.0, "stall_s": 60.0}
    pool = LoadPool()
    load: LocalLoad | RemoteLoad = LocalLoad(connection, path, bodies, **limits)
    if workers > 1:
        load = RemoteLoad(pool, [LOCAL] * workers, connection, path, bodies, **limits)
    try:
        await load.open()
        await load.start()
        while load.progress().with_token < streams:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(SETTLE_S)
        processes = [os.getpid(), *(load.pids if isinstance(load, RemoteLoad) else [])]
        before, t0 = cpu_s(processes), time.monotonic()
        t1 = t0 + seconds
        await load.run_window(t0, t1, 10.0)
        spent, until = cpu_s(processes) - before, time.monotonic()
    finally:
        records, health = await load.finish()
        pool.close()
    curves = count(records).streams
    window = measure_window(curves, t0, t1)
    requests = [curve for stream in curves for curve in stream if curve.stamps.size]
    gaps = [np.diff(record.stamps) for stream in records for record in stream]
    return Seen(
        ttft_ms=1e3 * float(np.median([curve.first - curve.sent for curve in requests])),
        itl_ms=1e3 * float(np.median(window.itls)),
        itl_p99_ms=1e3 * float(np.quantile(np.concatenate(gaps), 0.99)),
        tok_s=window.tokens / window.seconds,
        t0=t0,
        t1=t1,
        cpu_s=spent,
        chunks=sum(
            t0 <= at < until for stream in records for record in stream for at in record.stamps
        ),
        bound=client_bound(health),
    )


def cpu_s(pids: Iterable[int | None]) -> float:
    """Seconds on a core so far, all threads, to the nanosecond."""
    return 1e-9 * sum(
        int((task / "schedstat").read_text().split()[0])
        for pid in pids
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


CLIENTS = [
    Client("ours", script(__name__, "1", "uvloop")),
    Client("ours (2 workers)", script(__name__, "2", "uvloop"), several_processes=True),
    Client("ours (plain asyncio)", script(__name__, "1", "asyncio")),
]

if __name__ == "__main__":
    address, streams, _, tokens, seconds, out, workers, loop = sys.argv[1:]
    runner = run if loop == "uvloop" else asyncio.run
    runner(measure(address, int(streams), int(tokens), float(seconds), int(workers))).save(
        Path(out)
    )
