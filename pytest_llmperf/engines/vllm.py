"""vLLM, V0 and V1, with data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmperf.engines.answers import read_object, whole, word
from pytest_llmperf.engines.base import Gauges, Message
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask
from pytest_llmperf.engines.prometheus import Labels, Scrape
from pytest_llmperf.model.capacity import disbelief
from pytest_llmperf.model.result import ServerInfo

_WEAK = (
    "num_gpu_blocks x block_size: a weak hint, wrong for models with several kinds of KV cache; "
    "--llm-kv-tokens overrides it"
)


class Vllm(Generic):
    """vLLM. What it holds is in the labels of ``vllm:cache_config_info``, one set a rank."""

    name = "vllm"
    prefixes = ("vllm:", "process_start_time_seconds")

    async def describe(self) -> ServerInfo:
        """Version, limits and KV budget, as far as its metrics say."""
        scrape = await self.scrape()
        version = read_object(await ask(self.api, "/version")).get("version")
        known: dict[str, Any] = {"version": word(version)}
        if scrape.has("vllm:"):
            caches = _per_rank(scrape.labels("vllm:cache_config_info"))
            known["kv_tokens"], known["kv_source"] = kv_budget(caches, self.card.max_model_len)
            known["prefix_cache"] = _flag(caches, "enable_prefix_caching")
            known["speculative"] = scrape.has("vllm:spec_decode_")
            known["started"] = scrape.peak("process_start_time_seconds")
            # newer versions flatten their whole configuration into one info metric
            for config in scrape.labels("vllm:vllm_config_info")[:1]:
                seqs = whole(config.get("scheduler_config_max_num_seqs"))
                known["max_num_seqs"] = seqs and seqs * max(len(caches), 1)
                known["quantization"] = word(config.get("model_config_quantization"))
        return self.info(**known)

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """Old and new names alike; ranks summed, KV use of the fullest."""
        return Gauges(
            at=at,
            running=scrape.count("vllm:num_requests_running"),
            waiting=scrape.count("vllm:num_requests_waiting"),
            kv_use=scrape.peak("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            preemptions=scrape.total("vllm:num_preemptions_total", "vllm:num_preemptions"),
            prompt_tokens=scrape.total("vllm:prompt_tokens_total"),
            generated_tokens=scrape.total("vllm:generation_tokens_total"),
            prefix_queries=scrape.total(
                "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
            ),
            prefix_hits=scrape.total(
                "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
            ),
            steps=scrape.total("vllm:spec_decode_num_drafts_total"),
            accepted=scrape.total("vllm:spec_decode_num_accepted_tokens_total"),
            started=scrape.peak("process_start_time_seconds"),
        )

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        """As the completion endpoints count: a chat template brings its own special tokens."""
        body: dict[str, Any] = {"model": self.card.id}
        if isinstance(prompt, str):
            body |= {"prompt": prompt, "add_special_tokens": True}
        else:
            body |= {
                "messages": list(prompt),
                "add_generation_prompt": True,
                "add_special_tokens": False,
            }
        status, text = await self.api.post("/tokenize", body)
        return whole(read_object(text).get("count")) if status == 200 else None


def kv_budget(caches: Sequence[Labels], max_model_len: int | None) -> tuple[int | None, str]:
    """KV tokens of all ranks together, or None, and where that comes from.

    ``kv_cache_size_tokens`` is preferred. Blocks x block size is the fallback: the block size is
    stale (too small) or a minimum over groups for hybrid models. Neither is believed when a rank
    would not hold one full-length sequence, as no such server starts: with context parallelism
    the figures are those of a part. One block of each rank is reserved.
    """
    if not caches:
        return None, "the server does not report its KV cache"
    total, source = 0, "vllm:cache_config_info kv_cache_size_tokens"
    for cache in caches:
        blocks, block = whole(cache.get("num_gpu_blocks")), whole(cache.get("block_size"))
        tokens = whole(cache.get("kv_cache_size_tokens"))
        if tokens is None:
            if blocks is None or block is None:
                return None, "the server does not report its KV cache (num_gpu_blocks is None)"
            if whole(cache.get("mamba_block_size")):
                return None, "a hybrid model: num_gpu_blocks x block_size is not its KV cache"
            tokens, source = blocks * block, _WEAK
        if why := disbelief(tokens, max_model_len):
            return None, why
        reserved = tokens // blocks if blocks else block or 0
        total += max(tokens - reserved, max_model_len or 0)
    ranks = f", {len(caches)} ranks summed" if len(caches) > 1 else ""
    return total, source + ranks


def _per_rank(caches: Sequence[Labels]) -> list[Labels]:
    """One label set a rank: several front-end processes may show the same rank each."""
    return list({cache.get("engine", ""): cache for cache in caches}.values())


def _flag(caches: Sequence[Labels], label: str) -> bool | None:
    return {"True": True, "False": False}.get(caches[0].get(label, "")) if caches else None
