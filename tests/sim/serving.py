"""Helpers for tests that talk to a simulated server's process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from pytest_llmperf.sim.process import SimProcess, start

FAST = "sim:rtxpro6k_x4?speed=100&"
"""A step takes 0.2 ms and a short prompt 1 ms."""


@contextmanager
def client(process: SimProcess, **more: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=process.url, timeout=30, trust_env=False, **more) as http:
        yield http


@contextmanager
def serving(spec: str) -> Iterator[tuple[SimProcess, httpx.Client]]:
    """A process and a client for it."""
    with start(spec) as process, client(process) as http:
        yield process, http


def chat(max_tokens: int | None = 8, text: str = "Hello world", **more: Any) -> dict[str, Any]:
    """A chat request's body; streams with continuous usage."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return body | more


def events(text: str) -> list[Any]:
    """The data of each event, JSON read, ``[DONE]`` as it is."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def complete(http: httpx.Client, body: dict[str, Any]) -> list[Any]:
    """Stream a chat and return its events."""
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return events(answer.text)


def text_of(found: list[Any]) -> str:
    """The generated text of chat events."""
    deltas = [e["choices"][0]["delta"] for e in found if e != "[DONE]" and e.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def metric(http: httpx.Client, name: str) -> float:
    """One sample of /metrics, by the name's end."""
    lines = http.get("/metrics").text.splitlines()
    (line,) = [x for x in lines if not x.startswith("#") and x.split("{")[0].split()[0] == name]
    return float(line.split()[-1])


def wait_for(condition: Any, seconds: float = 5.0) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False
