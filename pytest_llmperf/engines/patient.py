"""A server asked again after a failure that passes by itself, as any client of it would."""

from __future__ import annotations

import asyncio
from typing import Any

from pytest_llmperf.client.http import Unreachable
from pytest_llmperf.engines.base import Api

PAUSES_S = (0.25, 0.75, 2.0)
"""Waits before the second and each later try."""
PASSING = (500, 502, 504)
"""Answers of a server or a gateway with a momentary trouble; 503 means that it loads, which
``server.connect`` waits for much longer."""


class PatientApi:
    """An ``Api`` whose GETs are tried a few times where the connection is dropped, or the answer is
    one of ``PASSING``. What the last try gives is the answer."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def get(self, path: str) -> tuple[int, str]:
        """As ``Api.get``.

        Raises:
            ServerUnusable: no HTTP answer at all, however often it was asked.
        """
        for pause in PAUSES_S:
            try:
                status, text = await self._api.get(path)
            except Unreachable as error:
                if error.cause != "lost":
                    raise
            else:
                if status not in PASSING:
                    return status, text
            await asyncio.sleep(pause)
        return await self._api.get(path)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """As ``Api.post``, once."""
        return await self._api.post(path, body)
