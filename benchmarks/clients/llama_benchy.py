"""llama-benchy. It runs one round of requests; a point with more has one of them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.clients import Client
from benchmarks.load import BENCH, MODEL, PROMPT_TOKENS, Load, Seen


def _command(url: str, load: Load, out: Path) -> list[str]:
    return [
        str(CLIENTS[0].python.with_name("llama-benchy")),
        f"--base-url={url}/v1",
        f"--model={MODEL}",
        f"--tokenizer={BENCH / 'tokenizer'}",
        f"--pp={PROMPT_TOKENS}",
        f"--tg={load.tokens}",
        f"--runs={load.requests // load.streams}",
        f"--concurrency={load.streams}",
        "--no-warmup",
        "--skip-coherence",
        "--no-adapt-prompt",
        "--latency-mode=none",
        "--exact-tg",
        f"--book-url={url}/book",
        "--format=json",
        f"--save-result={out}",
    ]


def _read(out: Path) -> Seen:
    said = json.loads(out.read_text())["benchmarks"][0]
    values = sorted(said["ttfr"]["values"])
    return Seen(
        values[len(values) // 2],
        1e3 / said["tg_req_throughput"]["mean"],
        None,
        said["tg_throughput"]["mean"],
    )


CLIENTS = [Client("llama-benchy", _command, _read, requirements=("llama-benchy==0.4.0",))]
