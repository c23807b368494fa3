"""Awaiting with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Await at most this long.

    ``asyncio.wait_for`` before Python 3.12 swallows a cancellation that comes in the moment in
    which the awaited thing is done; a loop around it then never ends.

    Raises:
        asyncio.TimeoutError: it was not done by then, and has been cancelled.
    """
    try:
        with anyio.fail_after(max(seconds, 0.0)):
            return await awaitable
    except TimeoutError as error:
        raise asyncio.TimeoutError(*error.args) from None
