"""The metrics page of vLLM."""

from __future__ import annotations

import json

from pytest_llmperf.sim.wire import Answer, Counters, Served, samples

_SERIES = (
    ("num_requests_running", "gauge", "running",
     "Number of requests in model execution batches."),
    ("num_requests_waiting", "gauge", "waiting", "Number of requests waiting to be processed."),
    ("kv_cache_usage_perc", "gauge", "kv_use", "KV-cache usage. 1 means 100 percent usage."),
    ("num_preemptions_total", "counter", "preemptions",
     "Cumulative number of preemption from the engine."),
    ("prefix_cache_queries_total", "counter", "prefix_queries",
     "Prefix cache queries, in terms of number of queried tokens."),
    ("prefix_cache_hits_total", "counter", "prefix_hits",
     "Prefix cache hits, in terms of number of cached tokens."),
    ("prompt_tokens_total", "counter", "prompt_tokens", "Number of prefill tokens processed."),
    ("generation_tokens_total", "counter", "generated_tokens",
     "Number of generation tokens processed."),
    ("spec_decode_num_drafts_total", "counter", "drafts", "Number of spec decoding drafts."),
    ("spec_decode_num_draft_tokens_total", "counter", "draft_tokens", "Number of draft tokens."),
    ("spec_decode_num_accepted_tokens_total", "counter", "accepted",
     "Number of accepted tokens."),
)  # fmt: skip
"""Name, type, field of `Counters`, help."""


def render_metrics(served: Served, now: Counters, gauges: bool) -> Answer:
    """All series; without ``gauges`` those of a server that tells nothing of its requests."""
    labels = f'{{engine="0",model_name={json.dumps(served.model)}}}'
    series: list[tuple[str, str, str, str, float]] = [
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            "",
            float(served.created),
        )
    ]
    if gauges:
        series += [
            (f"vllm:{name}", kind, text, labels, float(getattr(now, attribute)))
            for name, kind, attribute, text in _SERIES
        ]
        text = "Count of successfully processed requests."
        finished = labels.replace(",", ',finished_reason="length",', 1)
        series.append(
            ("vllm:request_success_total", "counter", text, finished, float(now.finished))
        )
    config = {
        "block_size": served.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "engine": 0,
        "gpu_memory_utilization": 0.92,
        "hash_block_size": None,
        "kv_cache_max_concurrency": round(served.kv_tokens / served.max_model_len, 2),
        "kv_cache_size_tokens": served.kv_tokens,
        "mamba_block_size": None,
        "num_cpu_blocks": None,
        "num_gpu_blocks": served.kv_tokens // served.block_size,
        "num_gpu_blocks_override": None,
        "user_specified_block_size": False,
    }
    pairs = ",".join(f'{name}="{value}"' for name, value in config.items())
    text = "Information of the LLMEngine CacheConfig"
    series.append(("vllm:cache_config_info", "gauge", text, "{" + pairs + "}", 1.0))
    return Answer(200, samples(series), "text/plain; version=1.0.0; charset=utf-8")
