"""What talks to the server runs on an event loop of its own, in a thread of its own.

Load left over from one cell cannot leak into the next, the test's own loop (its debug mode, its
other tasks, its fixtures) cannot disturb the stamps, and uvloop is used where it is installed. A
signal's KeyboardInterrupt is raised in the main thread: in the midst of uvloop it could be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pytest_llmperf.client.loop import run

T = TypeVar("T")


async def run_apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``make()`` on a fresh loop in a thread, and await its result.

    A cancellation (Ctrl-C) is passed on, and waited for, so that no request outlives the cell.
    """
    here = asyncio.get_running_loop()
    finished = asyncio.Event()
    box: list[T | BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    cancelled = threading.Event()

    async def body() -> T:
        task: asyncio.Task[T] = asyncio.ensure_future(make())
        started.append((asyncio.get_running_loop(), task))
        if cancelled.is_set():  # before there was a task to cancel
            task.cancel()
        return await task

    def work() -> None:
        try:
            box.append(run(body()))
        except BaseException as error:
            box.append(error)
        finally:
            with contextlib.suppress(RuntimeError):  # a second Ctrl-C has closed that loop
                here.call_soon_threadsafe(finished.set)

    thread = threading.Thread(target=work, name="llmperf-cell", daemon=True)
    thread.start()

    def cancel() -> None:
        cancelled.set()
        for loop, task in started:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)

    try:
        await finished.wait()
    except asyncio.CancelledError:
        cancel()
        try:
            await finished.wait()
        except asyncio.CancelledError:
            cancel()  # a second Ctrl-C: what the first one let it close in order ends as well
            raise
        raise
    finally:
        thread.join(5)
    outcome = box[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``make()`` from synchronous code, within a running loop too, and wait for its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(make())).result()
