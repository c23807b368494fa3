"""The load of one cell in a load process: what ``RemoteLoad`` runs at the far end of a gateway.

Messages are tuples of a name and plain values. In: ``load`` (at once), ``start``, ``window``,
``finish``, ``end``, and at any time ``ping``. Out: ``opened``, ``progress``, ``window``,
``records``, ``pong``, or ``failed``. When the channel closes, whatever the reason, the load ends.
All times are of this process's own monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pytest_llmperf.client.loop import run
from pytest_llmperf.measure.localload import LocalLoad
from pytest_llmperf.measure.recordpack import pack
from pytest_llmperf.model.errors import LlmPerfError
from pytest_llmperf.model.settings import Connection

PROGRESS_S = 0.2


def serve(channel: Any) -> None:
    """Generate load as the channel says, until it says that this was all, or is closed."""
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
            elif message[0] == "ping":
                # here, since the loop may have something else to do
                channel.send(("pong", *message[1:], time.monotonic()))
            else:
                loop.call_soon_threadsafe(inbox.put_nowait, message)

    channel.setcallback(hear, endmarker=None)
    try:
        await _generate(channel, inbox)
    except LlmPerfError as error:
        channel.send(("failed", str(error)))


async def _generate(channel: Any, inbox: asyncio.Queue[tuple[Any, ...]]) -> None:
    _, connection, ca, path, bodies, order, first_token_s, stall_s = await inbox.get()
    with _ca_file(ca) as file:
        if file:
            connection["verify"] = file
        load = LocalLoad(
            Connection(**connection),
            path,
            [bodies[i] for i in order],
            first_token_s=first_token_s,
            stall_s=stall_s,
        )
        await _run(channel, inbox, load)


async def _run(channel: Any, inbox: asyncio.Queue[tuple[Any, ...]], load: LocalLoad) -> None:
    tasks: list[asyncio.Task[None]] = []
    try:
        await load.open()
        channel.send(("opened", os.getpid()))
        while (message := await inbox.get())[0] not in ("finish", "end"):
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
    if message[0] == "finish":
        channel.send(("records", pack(records), health.model_dump()))
        # until then the clock is asked for
        await inbox.get()


async def _tell(channel: Any, load: LocalLoad) -> None:
    while True:
        channel.send(("progress", *astuple(load.progress())))
        await asyncio.sleep(PROGRESS_S)


async def _run_window(channel: Any, load: LocalLoad, t0: float, t1: float, limit: float) -> None:
    await load.run_window(t0, t1, limit)
    channel.send(("progress", *astuple(load.progress())))
    channel.send(("window",))


@contextlib.contextmanager
def _ca_file(text: str) -> Iterator[str]:
    """A certificate authority as a file, which another host does not have; no name for none."""
    if not text:
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ca.pem")
        path.write_text(text, encoding="utf-8")
        yield str(path)
