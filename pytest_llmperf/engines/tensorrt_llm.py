"""TensorRT-LLM's own server, from recorded shapes."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.engines.answers import child, objects, read_json, read_object, whole, word
from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import MetricsPage, ask
from pytest_llmperf.engines.prometheus import Scrape, parse
from pytest_llmperf.model.result import ServerInfo


class TensorRtLlm(Generic):
    """trtllm-serve. ``/metrics`` lists the last iterations as JSON, each once; newer versions
    have Prometheus text beside it."""

    name = "tensorrt_llm"
    prefixes = ("trtllm_", "trtllm:")
    metrics_hint = "enable_iter_perf_stats switches them on"

    async def describe(self) -> ServerInfo:
        """Version, and the budget once an iteration tells it."""
        version = read_object(await ask(self.api, "/version")).get("version")
        got = await self.page.fetch()
        last = _last_iteration(got[1]) if got else {}
        if not last and not (got and parse(got[1], self.prefixes).samples):
            text_page = MetricsPage(self.api, "/prometheus/metrics")
            found = await text_page.fetch()
            if found and parse(found[1], self.prefixes).samples:
                self.page = text_page
        cache = child(last, "kvCacheStats")
        blocks, block = whole(child(cache, "maxNumBlocks")), whole(child(cache, "tokensPerBlock"))
        known: dict[str, Any] = {}
        if blocks and block:
            known = {"kv_tokens": blocks * block, "kv_source": "maxNumBlocks x tokensPerBlock"}
        return self.info(
            version=word(version),
            max_num_seqs=whole(last.get("maxNumActiveRequests")),
            **known,
        )

    async def gauges(self) -> Gauges | None:
        """The last iteration, or the Prometheus text; None when nothing ran since the last look."""
        got = await self.page.fetch()
        if got is None:
            return None
        at, text = got
        scrape = parse(text, self.prefixes)
        if scrape.samples:
            return self.read_gauges(at, scrape)
        last = _last_iteration(text)
        if not last:
            return None
        used = _count(child(last, "kvCacheStats", "usedNumBlocks"))
        most = whole(child(last, "kvCacheStats", "maxNumBlocks"))
        return Gauges(
            at=at,
            running=_count(last.get("numActiveRequests")),
            waiting=_count(last.get("numQueuedRequests")),
            kv_use=min(used / most, 1.0) if used is not None and most else None,
        )

    def read_gauges(self, at: float, scrape: Scrape) -> Gauges:
        """Prometheus text of newer versions."""
        return Gauges(
            at=at,
            running=_either(scrape, "num_requests_running"),
            waiting=_either(scrape, "num_requests_waiting"),
            kv_use=scrape.peak("trtllm_kv_cache_utilization", "trtllm:kv_cache_utilization"),
        )


def _either(scrape: Scrape, name: str) -> int | None:
    return scrape.count(f"trtllm_{name}", f"trtllm:{name}")


def _last_iteration(text: str) -> dict[str, Any]:
    iterations = objects(read_json(text))
    return iterations[-1] if iterations else {}


def _count(value: Any) -> int | None:
    return 0 if value == 0 and not isinstance(value, bool) else whole(value)
