"""llama.cpp's server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pytest_llmperf.engines.answers import child, objects, read_json, read_object, whole, word
from pytest_llmperf.engines.base import Gauges, Message
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask
from pytest_llmperf.engines.prometheus import Scrape
from pytest_llmperf.model.result import ServerInfo


class LlamaCpp(Generic):
    """llama.cpp. Slots and context a slot come from ``/props`` and ``/slots``."""

    name = "llama.cpp"
    prefixes = ("llamacpp:",)
    metrics_hint = "start llama-server with --metrics"
    _query = ""

    async def describe(self) -> ServerInfo:
        """Slots, context a slot, build. What the slots hold together is known for one only."""
        props = read_object(await ask(self.api, "/props"))
        if child(props, "default_generation_settings") is None:
            # a router asks which of its models is meant
            self._query = f"?model={quote(self.card.id, safe='')}"
            props = read_object(await ask(self.api, f"/props{self._query}"))
            self.page.path += self._query
        scrape = await self.scrape()
        slots = await self._slots()
        defaults = child(props, "default_generation_settings")
        per_slot = (
            whole(child(defaults, "n_ctx"))
            or whole(child(slots[0], "n_ctx") if slots else None)
            or whole(child(self.card.extra, "meta", "n_ctx"))
        )
        total_slots = whole(props.get("total_slots")) or len(slots) or None
        kv_tokens, kv_source = kv_budget(per_slot, total_slots)
        build = word(props.get("build_info"))
        speculative = [
            word(child(defaults, "params", "speculative.types")) is not None,
            bool(scrape.total("llamacpp:spec_decode_num_drafts_total")),
            *(slot.get("speculative") is True for slot in slots),
        ]
        return self.info(
            version=None if build == "b0-unknown" else build,
            model_root=word(props.get("model_path")),
            quantization=word(props.get("model_ftype"))
            or word(child(self.card.extra, "meta", "ftype")),
            max_model_len=per_slot,
            max_num_seqs=total_slots,
            kv_tokens=kv_tokens,
            kv_source=kv_source,
            speculative=any(speculative) if defaults else None,
            prefix_cache=True,
        )

    async def gauges(self) -> Gauges | None:
        """Its metrics, or without them the number of busy slots."""
        if self.page.missing is None:
            return await super().gauges()
        slots = await self._slots()
        if not slots:
            return None
        busy = sum(slot.get("is_processing") is True for slot in slots)
        return Gauges(at=time.monotonic(), running=busy)

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """Its prompt counter leaves cached tokens out, so both are added for all prompt tokens. Its
        counter of generated tokens stands still until a request has ended, and says nothing of
        a window."""
        computed = scrape.total("llamacpp:prompt_tokens_total")
        cached = scrape.total("llamacpp:prompt_tokens_cached_total")
        queries = computed + cached if computed is not None and cached is not None else None
        return Gauges(
            at=at,
            running=scrape.count("llamacpp:requests_processing"),
            waiting=scrape.count("llamacpp:requests_deferred"),
            kv_use=scrape.peak("llamacpp:kv_cache_usage_ratio"),
            prompt_tokens=queries if queries is not None else computed,
            prefix_queries=queries,
            prefix_hits=cached,
            steps=scrape.total("llamacpp:spec_decode_num_drafts_total"),
            accepted=scrape.total("llamacpp:spec_decode_num_accepted_tokens_total"),
        )

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """Messages go through its chat template first; an empty list says nothing."""
        if not isinstance(prompt, str):
            body: dict[str, Any] = {"model": self.card.id, "messages": list(prompt)}
            status, text = await self.api.post("/apply-template", body)
            applied = read_object(text).get("prompt") if status == 200 else None
            if not isinstance(applied, str):
                return None
            prompt = applied
        body = {
            "model": self.card.id,
            "content": prompt,
            "add_special": True,
            "parse_special": True,
        }
        status, text = await self.api.post("/tokenize", body)
        tokens = read_object(text).get("tokens") if status == 200 else None
        return len(tokens) or None if isinstance(tokens, list) else None

    async def _slots(self) -> list[dict[str, Any]]:
        return objects(read_json(await ask(self.api, f"/slots{self._query}")))


def kv_budget(per_slot: int | None, slots: int | None) -> tuple[int | None, str]:
    """KV tokens of all slots together, or None, and why.

    By default the slots share one pool of n_ctx tokens, with explicit flags each has its own,
    and nothing over HTTP says which.
    """
    if per_slot is None or slots is None:
        return None, "the server does not report its slots"
    if slots == 1:
        return per_slot, "n_ctx of its only slot"
    return None, (
        f"between {per_slot:,} and {per_slot * slots:,}: llama.cpp does not tell whether its "
        f"{slots} slots share one pool; --llm-kv-tokens says it"
    )
