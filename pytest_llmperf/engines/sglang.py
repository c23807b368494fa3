"""SGLang, with data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmperf.engines.answers import child, objects, read_object, whole, word
from pytest_llmperf.engines.base import Gauges, Message
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask, try_post
from pytest_llmperf.engines.prometheus import Scrape
from pytest_llmperf.model.capacity import disbelief
from pytest_llmperf.model.result import ServerInfo


class SgLang(Generic):
    """SGLang. ``/server_info`` (older: ``/get_server_info``) tells limits and budgets a rank."""

    name = "sglang"
    prefixes = ("sglang:", "process_start_time_seconds")
    metrics_hint = "start SGLang with --enable-metrics"

    async def describe(self) -> ServerInfo:
        """Version, limits and budget. HiCache's host memory is not in the budget."""
        told = await self._server_info()
        scrape = await self.scrape()
        limit = (
            self.card.max_model_len
            or whole(told.get("context_length"))
            or whole(told.get("max_req_input_len"))
        )
        kv_tokens, kv_source = kv_budget(told, limit)
        speculative = prefix_cache = None
        if "speculative_algorithm" in told:
            speculative = word(told["speculative_algorithm"]) is not None
        if "disable_radix_cache" in told:
            prefix_cache = told["disable_radix_cache"] is not True
        notes = []
        mode = word(told.get("disaggregation_mode"))
        if mode is not None:
            notes.append(f"a disaggregated {mode} worker: limits and gauges are its own")
        return self.info(
            version=word(told.get("version")),
            model_root=word(told.get("model_path")),
            quantization=word(told.get("quantization")),
            max_model_len=limit,
            max_num_seqs=_max_running(told),
            kv_tokens=kv_tokens,
            kv_source=kv_source,
            speculative=speculative,
            prefix_cache=prefix_cache,
            started=scrape.peak("process_start_time_seconds"),
            notes=notes,
        )

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """Ranks summed; its speculative counters are rates, so steps stay unknown."""
        return Gauges(
            at=at,
            running=scrape.count("sglang:num_running_reqs"),
            waiting=scrape.count("sglang:num_queue_reqs"),
            kv_use=scrape.peak("sglang:token_usage"),
            preemptions=scrape.total("sglang:num_retracted_requests_total"),
            prompt_tokens=scrape.total("sglang:prompt_tokens_total"),
            generated_tokens=scrape.total("sglang:generation_tokens_total"),
            prefix_queries=scrape.total("sglang:prompt_tokens_total"),
            prefix_hits=scrape.total("sglang:cached_tokens_total"),
            started=scrape.peak("process_start_time_seconds"),
        )

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """Raw text, and messages where this version takes them."""
        body: dict[str, Any] = {"model": self.card.id}
        if isinstance(prompt, str):
            body |= {"prompt": prompt, "add_special_tokens": True}
        else:
            body |= {"messages": list(prompt), "add_generation_prompt": True}
        status, text = await self.api.post("/tokenize", body)
        return whole(read_object(text).get("count")) if status == 200 else None

    async def abort(self, request_id: str) -> None:
        """End this request at once: SGLang notices only seconds later that its client has gone.
        Nothing without an id: it would end all that have one that starts like it."""
        if request_id:
            body = {"rid": request_id, "abort_all": False}
            await try_post(self.api, "/abort_request", body)

    async def _server_info(self) -> dict[str, Any]:
        for path in ("/server_info", "/get_server_info"):
            if told := read_object(await ask(self.api, path)):
                return told
        return {}


def kv_budget(told: dict[str, Any], max_model_len: int | None) -> tuple[int | None, str]:
    """KV tokens of all data-parallel ranks together, or None, and where that comes from.

    ``max_total_num_tokens`` is one rank's. Below one full-length sequence it is a part's (context
    parallelism) and not believed.
    """
    ranks = [whole(child(s, "memory_usage", "token_capacity")) for s in _states(told)]
    size = whole(told.get("dp_size")) or max(len(ranks), 1)
    one = whole(told.get("max_total_num_tokens"))
    known = [tokens for tokens in ranks if tokens is not None]
    source = "max_total_num_tokens"
    if known and len(known) == len(ranks) == size:
        total, least, source = sum(known), min(known), "token_capacity"
    elif one is not None:
        total, least = one * size, one
    else:
        return None, "the server does not report its KV cache"
    if why := disbelief(least, max_model_len):
        return None, why
    ranks_told = f", {size} ranks summed" if size > 1 else ""
    cache = ", host cache not counted" if told.get("enable_hierarchical_cache") is True else ""
    return total, f"{source} of SGLang{ranks_told}{cache}"


def _max_running(told: dict[str, Any]) -> int | None:
    """Requests decoded at once: the effective cap, not the option, which can be far above it."""
    states = _states(told)
    size = whole(told.get("dp_size")) or max(len(states), 1)
    effective = [whole(s.get("effective_max_running_requests_per_dp")) for s in states]
    known = [cap for cap in effective if cap is not None]
    if known:
        return min(known) * size
    return whole(told.get("max_running_requests"))


def _states(told: dict[str, Any]) -> list[dict[str, Any]]:
    return objects(told.get("internal_states"))
