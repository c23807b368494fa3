"""Load from several processes: its numbers are the truth as from one, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure import remoteload, validity
from pytest_llmperf.measure.crew import LOCAL, Crew
from pytest_llmperf.measure.events import Invalid
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.measure.pool import LoadPool
from pytest_llmperf.measure.recordpack import pack, unpack
from pytest_llmperf.measure.remoteload import RemoteLoad
from pytest_llmperf.model.errors import ServerUnusable
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, Status
from pytest_llmperf.model.settings import Connection
from tests.measure.paced import PATH, QUICK, Paced, measuring, quick_threads
from tests.measure.recorded import request
from tests.support.scripted import ScriptedServer

BODY = b'{"messages":[{"role":"user","content":"go on"}],"max_tokens":4096}'


def is_gone(pid: int) -> bool:
    """Whether a process has ended (and, as ours, been waited for)."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    return True


def wait_until(done: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@asynccontextmanager
async def loading(url: str, streams: int = 4, workers: int = 2) -> AsyncIterator[RemoteLoad]:
    """A load whose connections are open; its processes must be gone afterwards."""
    pool, pids = LoadPool(), []
    load = RemoteLoad(
        pool,
        [LOCAL] * workers,
        Connection(url),
        PATH,
        [BODY] * streams,
        first_token_s=5.0,
        stall_s=5.0,
    )
    try:
        await load.open()
        pids = [pid for pid in load.pids if pid]
        yield load
    finally:
        with suppress(Invalid):
            await load.finish()
        pool.close()
    assert all(map(is_gone, pids))


def environment_of(pid: int | None) -> bytes:
    """Command line and environment of a process."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


async def all_decode(load: RemoteLoad, streams: int) -> None:
    while load.progress().decoding < streams:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def measure(measurer: Measurer, concurrency: int) -> Measurement:
    with pytest.MonkeyPatch.context() as patch, quick_threads():
        # a busy test machine may rightly make the client too slow; not what is asked here
        patch.setattr(validity, "client_bound", lambda health: None)
        return asyncio.run(measurer.decode(Cell("decode", 512, concurrency)))


def test_two_processes_measure_what_the_server_did() -> None:
    """Seven streams over two processes, four tokens a chunk, restarts in the window: tok/s, ITL,
    TTFT and streams are those of the server, as from one process."""
    paced = Paced(ttft=0.1, step=0.1, per_chunk=4)
    with (
        measuring(paced, timing=replace(QUICK, duration_s=3.0)) as (measurer, _),
        closing(Crew(workers=2)) as crew,
    ):
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 7)
    assert (found.status, found.reason) == (Status.VALID, "")
    assert found.total_tok_s == pytest.approx(7 * 40, rel=0.02)
    assert found.itl_ms == pytest.approx(25, rel=0.02)
    assert found.ttft_ms == pytest.approx(100, abs=20)
    assert found.decoding_avg == pytest.approx(7)
    assert found.tokens_per_chunk == pytest.approx(4)
    assert (found.client.workers, found.client.transport) == (2, "own")
    assert paced.peak == 7


def test_the_time_before_the_start_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that had its connections open long before the last one does not hang."""
    with ScriptedServer({PATH: Paced()}) as server:

        async def main() -> None:
            async with loading(server.url) as load:
                monkeypatch.setattr(remoteload, "SILENT_S", 0.5)
                await asyncio.sleep(0.6)
                await load.start()
                assert load.progress().requested == 4
                monkeypatch.undo()

        asyncio.run(main())


def test_requests_of_all_processes_start_together() -> None:
    """Connections are open before; then every request is sent within a moment of the others."""
    with ScriptedServer({PATH: Paced(ttft=0.1, step=0.05)}) as server:

        async def main() -> list[list[StreamRecord]]:
            async with loading(server.url, streams=8) as load:
                await asyncio.sleep(0.2)
                assert len(server.connections) == 8
                assert not server.requests
                await load.start()
                await all_decode(load, 8)
                return (await load.finish())[0]

        records = asyncio.run(main())
    sent = [record.sent_at or 0.0 for stream in records for record in stream]
    assert len(sent) == 8
    assert max(sent) - min(sent) < 0.05


def test_a_killed_process_makes_the_cell_invalid() -> None:
    """Quickly and with the reason, never a valid cell of fewer streams."""
    began: list[float] = []

    class Killing(RemoteLoad):
        async def run_window(self, t0: float, t1: float, limit: float) -> None:
            asyncio.get_running_loop().call_later(0.3, os.kill, self.pids[1], signal.SIGKILL)
            began.append(t0)
            await super().run_window(t0, t1, limit)

    with (
        pytest.MonkeyPatch.context() as patch,
        measuring(Paced(), timing=replace(QUICK, duration_s=60.0)) as (measurer, _),
        closing(Crew(workers=2)) as crew,
    ):
        patch.setattr("pytest_llmperf.measure.setup.RemoteLoad", Killing)
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 4)
        took = time.monotonic() - began[0]
    assert found.status == Status.INVALID
    assert found.reason.startswith("load process 2 of 2 ended during the measurement")
    assert found.total_tok_s is None
    assert took < 50


def test_a_process_that_hangs_is_noticed_and_removed() -> None:
    with pytest.MonkeyPatch.context() as patch, ScriptedServer({PATH: Paced()}) as server:
        patch.setattr("pytest_llmperf.measure.remoteload.SILENT_S", 1.0)
        patch.setattr("pytest_llmperf.measure.remoteload.CLOSE_S", 0.2)
        patch.setattr("pytest_llmperf.measure.pool.EXIT_S", 0.2)

        async def main() -> None:
            async with loading(server.url) as load:
                await load.start()
                os.kill(load.pids[0] or 0, signal.SIGSTOP)
                now = time.monotonic()
                with pytest.raises(Invalid, match="load process 1 of 2 hangs"):
                    await load.run_window(now, now + 10, 1.0)

        asyncio.run(main())


def test_a_failed_stream_ends_the_window_early_with_the_servers_words() -> None:
    paced = Paced(refuse=lambda n, body: (500, "out of luck") if n == 3 else None)
    with ScriptedServer({PATH: paced}) as server:

        async def main() -> tuple[str, list[list[StreamRecord]]]:
            async with loading(server.url) as load:
                await load.start()
                now = time.monotonic()
                await load.run_window(now, now + 60, 1.0)
                assert time.monotonic() - now < 50
                return load.progress().error, (await load.finish())[0]

        error, records = asyncio.run(main())
    assert "out of luck" in error
    assert [r.end for stream in records for r in stream].count("failed") == 1


def test_no_more_processes_than_streams() -> None:
    with ScriptedServer({PATH: Paced()}) as server:

        async def main() -> int:
            async with loading(server.url, streams=2, workers=5) as load:
                return len(load.pids)

        assert asyncio.run(main()) == 2


def test_a_server_that_cannot_be_reached_is_said_as_from_one_process() -> None:
    async def main() -> None:
        async with loading("http://127.0.0.1:1"):
            pass  # pragma: no cover

    with pytest.raises(ServerUnusable, match=r"127\.0\.0\.1"):
        asyncio.run(main())


def test_processes_end_when_their_parent_is_killed() -> None:
    """Even by SIGKILL, in the middle of a load: no orphan goes on loading the server."""
    script = (
        "import asyncio, sys\n"
        "from tests.measure.test_workers import loading\n"
        "async def main():\n"
        "    async with loading(sys.argv[1]) as load:\n"
        "        await load.start()\n"
        "        print(*load.pids, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    paced = Paced()
    with ScriptedServer({PATH: paced}) as server:
        parent = subprocess.Popen(
            [sys.executable, "-c", script, server.url], stdout=subprocess.PIPE, text=True
        )
        with parent:
            assert parent.stdout is not None
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            wait_until(lambda: paced.running == 4)
            parent.kill()
        assert len(pids) == 2
        wait_until(lambda: all(map(is_gone, pids)))
        wait_until(lambda: paced.running == 0)


def test_the_key_is_on_no_command_line() -> None:
    with ScriptedServer({PATH: Paced()}) as server, closing(LoadPool()) as pool:

        async def main() -> list[bytes]:
            connection = Connection(server.url, api_key="sk-secret-4711")
            load = RemoteLoad(
                pool,
                [LOCAL] * 2,
                connection,
                PATH,
                [BODY] * 2,
                first_token_s=5.0,
                stall_s=5.0,
            )
            try:
                await load.open()
                await load.start()
                await all_decode(load, 2)
                return [environment_of(pid) for pid in load.pids]
            finally:
                await load.finish()

        places = asyncio.run(main())
        keys = {request.headers["authorization"] for request in server.requests}
    assert keys == {"Bearer sk-secret-4711"}
    assert not any(b"4711" in place for place in places)


def test_records_travel_unchanged() -> None:
    streams = [
        [request(1.25, 1.5, 0.1, 30, end="finished", text="day and night"), request(5, 6, 0.1, 0)],
        [],
        [request(2, 3, 0.3, 7, usage="final", prompt=None, error="no")],
    ]
    assert unpack(pack(streams)) == streams
