"""What the plain HTTP clients share: requests in rounds, stamps, and figures over the whole run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.load import MODEL, Seen

Stream = Callable[[str, dict[str, Any]], AsyncIterator[str]]
"""Sends a body and yields the lines of the answer."""
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Go on."}],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


async def measure(stream: Stream, url: str, streams: int, requests: int, tokens: int) -> Seen:
    """As a careful user of that client would: stamp each chunk as it is handed out, parse it."""
    body = {**BODY, "max_tokens": tokens}
    left = iter(range(requests))
    sent: list[float] = []
    arrivals: list[list[tuple[float, int]]] = []

    async def work() -> None:
        for _ in left:
            found: list[tuple[float, int]] = []
            arrivals.append(found)
            sent.append(time.monotonic())
            async for line in stream(f"{url}/v1/chat/completions", body):
                if line.startswith("data: {"):
                    at = time.monotonic()
                    made = json.loads(line[6:])["usage"]["completion_tokens"]
                    if made > (found[-1][1] if found else 0):
                        found.append((at, made))

    cpu = time.process_time()
    await asyncio.gather(*(work() for _ in range(streams)))
    return figures(sent, arrivals, time.process_time() - cpu)


def figures(
    sent: Sequence[float], arrivals: Sequence[Sequence[tuple[float, int]]], cpu_s: float
) -> Seen:
    """What a client says of a whole run.

    Args:
        sent: when each request was sent.
        arrivals: of each request, when tokens came and how many there were then.
        cpu_s: what that took.
    """
    ends = [found[-1][0] for found in arrivals]
    gaps = np.concatenate([np.diff([at for at, _ in found]) for found in arrivals])
    itls = [(f[-1][0] - f[0][0]) / (f[-1][1] - f[0][1]) for f in arrivals]
    return Seen(
        ttft_ms=1e3
        * float(np.median([f[0][0] - at for f, at in zip(arrivals, sent, strict=True)])),
        itl_ms=1e3 * float(np.mean(itls)),
        itl_p99_ms=1e3 * float(np.quantile(gaps, 0.99)),
        tok_s=sum(found[-1][1] for found in arrivals) / (max(ends) - min(sent)),
        cpu_s=cpu_s,
        chunks=sum(map(len, arrivals)),
    )
