"""The metrics page of one server: fetched as long as it is there, given up for good if not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from pytest_llmperf.client.deadline import within
from pytest_llmperf.engines.answers import complaint
from pytest_llmperf.engines.base import Api
from pytest_llmperf.model.errors import ServerUnusable

_PATIENCE_S = 5.0
"""What is optional is not waited for longer than this."""


async def try_get(api: Api, path: str) -> tuple[int, str]:
    """Status and text of something optional; status 0 and the reason without an HTTP answer."""
    return await _within_patience(path, api.get(path))


async def try_post(api: Api, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """The same for a POST with a JSON body."""
    return await _within_patience(path, api.post(path, body))


async def _within_patience(
    path: str, answer: Coroutine[Any, Any, tuple[int, str]]
) -> tuple[int, str]:
    try:
        return await within(_PATIENCE_S, answer)
    except asyncio.TimeoutError:
        return 0, f"{path} does not answer within {_PATIENCE_S:.0f} s"
    except ServerUnusable as error:
        return 0, str(error)


async def ask(api: Api, path: str) -> str:
    """Text of something optional; empty unless it is there (HTTP 200)."""
    status, text = await try_get(api, path)
    return text if status == 200 else ""


class MetricsPage:
    """Text of a server's metrics, with the time of its arrival.

    Attributes:
        path: where it is, below the server's root.
        missing: why there is none, for people; None while there is, or nobody has looked.
    """

    def __init__(self, api: Api, path: str = "/metrics") -> None:
        self._api = api
        self._seen = False
        self.path = path
        self.missing: str | None = None

    async def fetch(self) -> tuple[float, str] | None:
        """``time.monotonic()`` at arrival and the text, or None. Never raises for an answer.

        A page that fails at its first look is never asked again; one that was there before may
        miss a scrape.
        """
        if self.missing is not None:
            return None
        status, text = await try_get(self._api, self.path)
        at = time.monotonic()
        if status == 200:
            self._seen = True
            return at, text
        if not self._seen:
            words = f": {complaint(text)}" if text else ""
            self.missing = f"{self.path} answers {status}{words}" if status else complaint(text)
        return None

    def give_up(self, why: str) -> None:
        """There is nothing of use here."""
        self.missing = self.missing or why
