"""The event loop of a measurement: uvloop where it is installed."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

from pytest_llmperf.model.errors import ServerUnusable

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on the fastest loop there is."""

    async def body() -> T:
        try:
            return await main
        except (asyncio.CancelledError, ServerUnusable):
            # anyio, below httpx, loses a connection that is cancelled the moment it is made, or in
            # its TLS handshake: the closing loop ends it, and the user need not hear of it
            warnings.simplefilter("ignore", ResourceWarning)
            raise

    with warnings.catch_warnings():
        try:
            import uvloop
        except ImportError:
            return asyncio.run(body())
        result: T = uvloop.run(body())
        return result
