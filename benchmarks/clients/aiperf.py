"""NVIDIA's aiperf."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.clients import Client
from benchmarks.load import BENCH, MODEL, PROMPT_TOKENS, Load, Seen


def _command(url: str, load: Load, out: Path) -> list[str]:
    return [
        str(CLIENTS[0].python.with_name("aiperf")),
        "profile",
        f"--model={MODEL}",
        f"--url={url}",
        "--endpoint-type=chat",
        "--streaming",
        f"--tokenizer={BENCH / 'tokenizer'}",
        f"--concurrency={load.streams}",
        f"--request-count={load.requests}",
        "--use-server-token-count",
        "--per-chunk-usage",
        f"--output-tokens-mean={load.tokens}",
        f"--synthetic-input-tokens-mean={PROMPT_TOKENS}",
        "--ui=none",
        f"--artifact-dir={out}",
    ]


def _read(out: Path) -> Seen:
    said = json.loads((out / "profile_export_aiperf.json").read_text())
    return Seen(
        said["time_to_first_token"]["p50"],
        said["inter_token_latency"]["avg"],
        said["inter_chunk_latency"]["p99"],
        said["output_token_throughput"]["avg"],
    )


CLIENTS = [
    Client("aiperf", _command, _read, requirements=("aiperf==0.13.0",), several_processes=True)
]
