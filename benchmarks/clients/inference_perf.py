"""inference-perf, of the Kubernetes project. It needs Python 3.12."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.clients import Client
from benchmarks.load import BENCH, MODEL, PROMPT_TOKENS, Load, Seen

_CONFIG = """
load: {{type: concurrent, stages: [{{num_requests: {requests}, concurrency_level: {streams}}}]}}
api: {{type: completion, streaming: true}}
server: {{type: vllm, model_name: {model}, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: "{tokenizer}"}}
data:
  type: random
  input_distribution:
    {{min: {prompt}, max: {prompt}, mean: {prompt}, std_dev: 0, total_count: {requests}}}
  output_distribution:
    {{min: {tokens}, max: {tokens}, mean: {tokens}, std_dev: 0, total_count: {requests}}}
storage: {{local_storage: {{path: "{out}"}}}}
"""


def _command(url: str, load: Load, out: Path) -> list[str]:
    config = out.with_suffix(".yaml")
    config.write_text(
        _CONFIG.format(
            requests=load.requests,
            streams=load.streams,
            tokens=load.tokens,
            model=MODEL,
            url=url,
            tokenizer=BENCH / "tokenizer",
            prompt=PROMPT_TOKENS,
            out=out,
        )
    )
    return [str(CLIENTS[0].python.with_name("inference-perf")), "--config_file", str(config)]


def _read(out: Path) -> Seen:
    (path,) = out.rglob("summary_lifecycle_metrics.json")
    said = json.loads(path.read_text())["successes"]
    latency = said["latency"]
    return Seen(
        1e3 * latency["time_to_first_token"]["median"],
        1e3 * latency["time_per_output_token"]["mean"],
        1e3 * latency["inter_token_latency"]["p99"],
        said["throughput"]["output_tokens_per_sec"],
    )


CLIENTS = [
    Client(
        "inference-perf", _command, _read,
        requirements=("inference-perf==0.7.0",), interpreter="python3.12", several_processes=True,
    )
]  # fmt: skip
