"""Whether the client says so when it could not keep up."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from pytest_llmperf.client.health import (
    MAX_CPU_SHARE,
    MAX_DELAY_P99_MS,
    MAX_LAG_MS,
    MAX_LAG_P99_MS,
    MAX_MERGED,
    MAX_UNREAD_S,
    HealthMonitor,
    client_bound,
)
from pytest_llmperf.client.stream import StreamClient
from pytest_llmperf.model.result import ClientHealth
from pytest_llmperf.model.settings import Connection


def watch(work: object, seconds: float = 0.3) -> ClientHealth:
    """The health of a loop on which ``work`` runs once, in the middle."""

    async def main() -> ClientHealth:
        monitor = HealthMonitor()
        monitor.start()
        await asyncio.sleep(seconds / 2)
        if callable(work):
            work()
        await asyncio.sleep(seconds / 2)
        return monitor.stop()

    return asyncio.run(main())


def test_an_idle_loop_uses_next_to_no_core() -> None:
    health = watch(None)
    assert health.cpu_share is not None
    assert health.cpu_share < 0.5
    assert health.loop_lag_p99_ms is not None
    assert health.processing_delay_p99_ms is None, "nothing arrived, so nothing was observed"


def test_a_loop_that_stands_still_is_seen() -> None:
    health = watch(lambda: time.sleep(0.4))
    assert health.loop_lag_max_ms is not None
    assert health.loop_lag_max_ms > 350


def test_a_loop_that_never_yields_again_is_seen_at_the_stop() -> None:
    async def main() -> ClientHealth:
        monitor = HealthMonitor()
        monitor.start()
        time.sleep(0.3)  # noqa: ASYNC251
        return monitor.stop()

    lag = asyncio.run(main()).loop_lag_max_ms
    assert lag is not None
    assert lag > 250


def test_work_on_the_loops_core_is_seen() -> None:
    def burn() -> None:
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass

    share = watch(burn, 0.1).cpu_share
    assert share is not None
    assert share > 0.02, "a loop that does nothing uses less"


def test_collections_are_timed_and_what_was_there_before_is_spared() -> None:
    frozen: list[int] = []

    def collect() -> None:
        frozen.append(gc.get_freeze_count())
        gc.collect()

    health = watch(collect)
    assert frozen[0] > 1000
    assert gc.get_freeze_count() == 0
    assert health.gc_pause_max_ms is not None
    assert health.gc_pause_max_ms > 0


def test_the_transport_is_named() -> None:
    async def main() -> ClientHealth:
        client = StreamClient(Connection("http://127.0.0.1:9"))
        monitor = HealthMonitor(client)
        monitor.start()
        await asyncio.sleep(0)
        health = monitor.stop()
        await client.aclose()
        return health

    assert asyncio.run(main()).transport == "own"


@pytest.mark.parametrize(
    ("field", "limit", "word"),
    [
        ("cpu_share", MAX_CPU_SHARE, "core"),
        ("loop_lag_p99_ms", MAX_LAG_P99_MS, "lagged"),
        ("loop_lag_max_ms", MAX_LAG_MS, "stood still"),
        ("processing_delay_p99_ms", MAX_DELAY_P99_MS, "process"),
        ("merged_reads", MAX_MERGED, "late"),
        ("unread_s", MAX_UNREAD_S, "had not read"),
    ],
)
def test_beyond_a_limit_the_client_is_bound_and_says_what_helps(
    field: str, limit: float, word: str
) -> None:
    assert client_bound(ClientHealth(**{field: limit})) is None
    said = client_bound(ClientHealth(**{field: limit * 1.1}))
    assert said is not None
    assert said.startswith("client bound")
    assert word in said
    assert "--llm-workers" in said


def test_a_loop_that_lags_does_not_spoil_the_kernels_stamps() -> None:
    lag = {"loop_lag_p99_ms": 2 * MAX_LAG_P99_MS, "loop_lag_max_ms": 2 * MAX_LAG_MS}
    assert client_bound(ClientHealth(stamps="kernel", **lag)) is None
    assert client_bound(ClientHealth(stamps="program", **lag)) is not None


def test_nothing_observed_is_not_a_failure_to_keep_up() -> None:
    assert client_bound(ClientHealth()) is None
