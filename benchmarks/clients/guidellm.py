"""guidellm, of the vLLM project."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.clients import Client
from benchmarks.load import BENCH, MODEL, PROMPT_TOKENS, Load, Seen


def _command(url: str, load: Load, out: Path) -> list[str]:
    return [
        str(CLIENTS[0].python.with_name("guidellm")),
        "run",
        f"--backend=kind=openai_http,target={url},model={MODEL}",
        f"--profile=kind=concurrent,streams={load.streams}",
        f"--constraint=kind=max_requests,count={load.requests}",
        f"--tokenizer=kind=hf_auto,model={BENCH / 'tokenizer'}",
        f"--data=kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
        f"--output=kind=json,path={out.with_suffix('.json')}",
        "--disable-console",
    ]


def _read(out: Path) -> Seen:
    metrics = json.loads(out.with_suffix(".json").read_text())["benchmarks"][0]["metrics"]
    said = {name: metrics[name]["successful"] for name in metrics if "token" in name}
    # its percentiles of ITL are over requests, not over gaps
    return Seen(
        said["time_to_first_token_ms"]["median"],
        said["inter_token_latency_ms"]["mean"],
        None,
        said["output_tokens_per_second"]["mean"],
    )


CLIENTS = [
    Client("guidellm", _command, _read, requirements=("guidellm==0.8.1",), several_processes=True)
]
