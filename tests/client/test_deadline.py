"""Deadlines: they end what is late, and never swallow a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from pytest_llmperf.client.deadline import within


def test_what_is_late_is_cancelled() -> None:
    """TimeoutError, and the awaited thing saw a cancellation."""

    async def main() -> bool:
        seen = asyncio.Event()

        async def late() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                seen.set()

        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, late())
        return seen.is_set()

    assert asyncio.run(main())


def test_a_cancellation_in_the_moment_of_success_is_not_lost() -> None:
    """A polling loop around a call that just succeeded ends when it is cancelled."""

    async def main() -> bool:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def poll() -> None:
            await within(10, done)
            await asyncio.sleep(10)

        task = asyncio.create_task(poll())
        await asyncio.sleep(0.01)
        done.set_result(1)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        return task.cancelled()

    assert asyncio.run(main())
