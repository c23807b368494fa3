"""A load process: what ``RemoteLoad`` has execnet run at the far end of a gateway.

Messages are tuples of a name and plain values. In: ``load`` (at once), ``start``, ``window``,
``finish``. Out: ``opened``, ``progress``, ``window``, ``records``, or ``failed``. When the channel
closes, whatever the reason, the load ends, and with it the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import astuple
from typing import Any

from pytest_llmperf.client.loop import run
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.measure.recordpack import pack
from pytest_llmperf.model.errors import LlmPerfError
from pytest_llmperf.model.settings import Connection

PROGRESS_S = 0.2


def serve(channel: Any) -> None:
    """Generate load as the channel says, until it has taken the records or is closed."""
    # Ctrl-C reaches every process of the terminal; ours end when their parent says so, or ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(asyncio.CancelledError, OSError):
        run(_serve(channel))


async def _serve(channel: Any) -> None:
    loop, us = asyncio.get_running_loop(), asyncio.current_task()
    assert us is not None
    inbox: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

    def hear(message: tuple[Any, ...] | None) -> None:
        # called in execnet's thread, at the latest when this loop is gone
        with contextlib.suppress(RuntimeError):
            if message is None:
                loop.call_soon_threadsafe(us.cancel)
            else:
                loop.call_soon_threadsafe(inbox.put_nowait, message)

    channel.setcallback(hear, endmarker=None)
    try:
        await _generate(channel, inbox)
    except LlmPerfError as error:
        channel.send(("failed", str(error)))


async def _generate(channel: Any, inbox: asyncio.Queue[tuple[Any, ...]]) -> None:
    _, connection, path, bodies, order, first_token_s, stall_s = await inbox.get()
    load = LocalLoad(
        Connection(**connection),
        path,
        [bodies[i] for i in order],
        first_token_s=first_token_s,
        stall_s=stall_s,
    )
    tasks: list[asyncio.Task[None]] = []
    try:
        await load.open()
        channel.send(("opened", os.getpid()))
        while (message := await inbox.get())[0] != "finish":
            name, *times = message
            if name == "start":
                await asyncio.sleep(times[0] - time.monotonic())
                await load.start()
                tasks.append(asyncio.create_task(_tell(channel, load)))
            else:
                tasks.append(asyncio.create_task(_run_window(channel, load, *times)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        records, health = await load.finish()
    channel.send(("records", pack(records), health.model_dump()))


async def _tell(channel: Any, load: LocalLoad) -> None:
    while True:
        channel.send(("progress", *astuple(load.progress())))
        await asyncio.sleep(PROGRESS_S)


async def _run_window(channel: Any, load: LocalLoad, t0: float, t1: float, limit: float) -> None:
    await load.run_window(t0, t1, limit)
    channel.send(("progress", *astuple(load.progress())))
    channel.send(("window",))
