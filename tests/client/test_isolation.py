"""What runs apart comes back, and ends when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from pytest_llmperf.client import isolation
from pytest_llmperf.client.isolation import run_apart
from pytest_llmperf.client.loop import run


async def sleep_long() -> None:
    await asyncio.sleep(30)


async def cancel_after(seconds: float) -> None:
    apart = asyncio.ensure_future(run_apart(sleep_long))
    await asyncio.sleep(seconds)
    apart.cancel()
    await apart


@pytest.mark.parametrize("start_s", [0.0, 0.3])
def test_a_cancellation_ends_it_even_before_it_has_started(
    start_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop takes its time to start, the more so when uvloop is first imported."""

    def start_slowly(main: Coroutine[Any, Any, None]) -> None:
        time.sleep(start_s)
        run(main)

    monkeypatch.setattr(isolation, "run", start_slowly)
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_after(0.1))
    assert time.monotonic() - began < 10
    assert "llmperf-cell" not in {thread.name for thread in threading.enumerate()}


def test_a_second_cancellation_ends_what_the_first_let_it_close() -> None:
    """As by a second Ctrl-C: no thread is left whose loop would be destroyed with its tasks."""
    running, closing = threading.Event(), threading.Event()
    ends: list[str] = []

    async def close_slowly() -> None:
        try:
            running.set()
            await asyncio.sleep(60)
        finally:
            closing.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ends.append("cancelled while it closed")
                raise

    async def cancel_twice() -> None:
        apart = asyncio.ensure_future(run_apart(close_slowly))
        for reached in (running, closing):
            assert await asyncio.to_thread(reached.wait, 60)
            apart.cancel()
        await apart

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_twice())
    assert ends == ["cancelled while it closed"]
    assert "llmperf-cell" not in {thread.name for thread in threading.enumerate()}


def test_what_it_returns_or_raises_is_handed_over() -> None:
    """From a thread of its own."""

    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("boom")

    assert asyncio.run(run_apart(name)) == "llmperf-cell"
    with pytest.raises(ValueError, match="boom"):
        asyncio.run(run_apart(fail))


def test_a_loop_that_was_closed_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a second Ctrl-C: the thread ends without a traceback of its own."""

    async def sleep_shortly() -> None:
        await asyncio.sleep(0.3)

    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of the task that is left pending
    task = loop.create_task(run_apart(sleep_shortly))
    loop.run_until_complete(asyncio.sleep(0.1))
    (thread,) = [t for t in threading.enumerate() if t.name == "llmperf-cell"]
    loop.close()
    thread.join(10)
    assert not thread.is_alive()
    assert not task.done()
    assert failures == []
