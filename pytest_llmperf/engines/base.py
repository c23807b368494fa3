"""The seam between the measurement and the engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_llmperf.model.result import ServerInfo

Message = dict[str, str]
"""One chat message: ``{"role": ..., "content": ...}``."""


@dataclass(frozen=True)
class Gauges:
    """One scrape. Counters are totals since the server started, summed over its ranks.

    None is unknown, never 0. ``at`` is ``time.monotonic()`` seconds at the answer's arrival.
    """

    at: float
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """Fraction, 0 to 1; the fullest rank."""
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    steps: float | None = None
    """Speculative decoding: sequence-steps so far, i.e. drafts verified, over all requests. A step
    of a batch of C counts C times, so tokens per step = accepted / steps + 1."""
    accepted: float | None = None
    """Draft tokens accepted so far, over all requests."""
    started: float | None = None
    """Start of the server process, Unix seconds."""


class Api(Protocol):
    """Plain, non-streaming calls to the server: bounded in time and in size, with the key."""

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET below the server's root; never raises for an HTTP status.

        Raises:
            ServerUnusable: no HTTP answer at all.
        """
        ...

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """The same for a POST with a JSON body."""
        ...


class Engine(Protocol):
    """One kind of server. Anything a server does not tell is None, and costs no waiting."""

    name: str

    async def describe(self) -> ServerInfo:
        """Model, version, limits and KV budget. Called once, before the first cell."""
        ...

    async def gauges(self) -> Gauges | None:
        """One scrape, or None where the server has no metrics. Never raises for a bad answer."""
        ...

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """Tokens of a raw text (str), or of chat messages with the server's template applied.

        None where the server has no tokenizer endpoint.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End one request of ours, by the ``id`` of its chunks, where the engine has a call for it;
        else do nothing. Bounded in time; never raises for a bad answer."""
        ...
