"""Any OpenAI-compatible endpoint, and what the other engines have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pytest_llmperf.engines.base import Api, Gauges, Message
from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.page import MetricsPage
from pytest_llmperf.engines.prometheus import Scrape, parse
from pytest_llmperf.model.result import ServerInfo


class Generic:
    """An endpoint that answers ``/v1/models`` and completions, and promises nothing else.

    A subclass names the metrics it reads in ``prefixes`` and ``read_gauges``, and fills
    ``describe``.
    """

    name = "openai"
    prefixes: ClassVar[tuple[str, ...]] = ()
    metrics_hint: ClassVar[str] = ""
    """How to switch the engine's metrics on, for people."""

    def __init__(self, api: Api, card: Card, page: MetricsPage) -> None:
        self.api = api
        self.card = card
        self.page = page
        if not self.prefixes:
            page.give_up("none are known for this kind of server")

    async def describe(self) -> ServerInfo:
        """What ``/v1/models`` says."""
        return self.info()

    async def gauges(self) -> Gauges | None:
        """One scrape, or None without metrics."""
        got = await self.page.fetch()
        if got is None:
            return None
        scrape = parse(got[1], self.prefixes)
        return self.read_gauges(got[0], scrape) if scrape.samples else None

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """The gauges of one scrape that has some of our metrics."""
        return Gauges(at=at)

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """None: no tokenizer endpoint is known."""
        return None

    async def abort(self, request_id: str) -> None:
        """Nothing: closing its connection ends a request."""

    async def scrape(self) -> Scrape:
        """The metrics at the time of ``describe``; an empty one, and a note, without any."""
        got = await self.page.fetch()
        scrape = parse(got[1], self.prefixes) if got else Scrape()
        # a scrape that was missed says nothing; the first one of all has ended the matter itself
        if got and not scrape.samples:
            self.page.give_up(f"{self.page.path} has none of this engine")
        return scrape

    def info(self, **known: Any) -> ServerInfo:
        """Description of this server: the card's facts, and those known beyond them."""
        notes = []
        if self.page.missing is not None:
            hint = f"; {self.metrics_hint}" if self.metrics_hint else ""
            notes.append(f"no metrics: {self.page.missing}{hint}")
        facts = {
            "engine": self.name,
            "model": self.card.id,
            "model_root": self.card.root,
            "max_model_len": self.card.max_model_len,
            "simulated": self.card.simulated is not None,
            "plays": self.card.simulated,
            "notes": notes + known.pop("notes", []),
        }
        return ServerInfo(**(facts | {k: v for k, v in known.items() if v is not None}))
