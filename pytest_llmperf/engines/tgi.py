"""Hugging Face text-generation-inference, from recorded shapes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.engines.answers import read_json, read_object, whole, word
from pytest_llmperf.engines.base import Gauges, Message
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask
from pytest_llmperf.engines.prometheus import Scrape
from pytest_llmperf.model.result import ServerInfo


class Tgi(Generic):
    """TGI. ``/info`` tells its limits."""

    name = "tgi"
    prefixes = ("tgi_",)

    async def describe(self) -> ServerInfo:
        """Version, limits, budget. Beyond ``max_concurrent_requests`` it answers 429."""
        told = read_object(await ask(self.api, "/info"))
        await self.scrape()
        admitted = [
            n
            for key in ("max_batch_size", "max_concurrent_requests")
            if (n := whole(told.get(key)))
        ]
        budget = whole(told.get("max_batch_total_tokens"))
        return self.info(
            version=word(told.get("version")),
            model_root=word(told.get("model_id")),
            quantization=word(told.get("quantize")),
            max_model_len=whole(told.get("max_total_tokens")),
            max_num_seqs=min(admitted, default=None),
            kv_tokens=budget,
            kv_source="max_batch_total_tokens" if budget else None,
        )

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """Its counts of generated tokens move only when a request ends: over a window they are no
        rate, so they are left out."""
        return Gauges(
            at=at,
            running=scrape.count("tgi_batch_current_size"),
            waiting=scrape.count("tgi_queue_size"),
            prompt_tokens=scrape.total("tgi_request_input_length_sum"),
        )

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """``/tokenize`` for text, ``/chat_tokenize`` for messages."""
        if isinstance(prompt, str):
            status, text = await self.api.post("/tokenize", {"inputs": prompt})
            tokens = read_json(text)
        else:
            body = {"model": self.card.id, "messages": list(prompt)}
            status, text = await self.api.post("/chat_tokenize", body)
            tokens = read_object(text).get("tokenize_response")
        return len(tokens) or None if status == 200 and isinstance(tokens, list) else None
