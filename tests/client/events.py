"""Bodies of streams, as bytes."""

from __future__ import annotations

import json
from typing import Any

from tests.support.scripted import chunk

DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    """One event as most servers send it."""
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def choice(**fields: Any) -> bytes:
    """One event with one choice of these fields."""
    return event({"object": "chat.completion.chunk", "choices": [{"index": 0, **fields}]})


def delta(**fields: Any) -> bytes:
    """One event with one delta of these fields."""
    return choice(delta=fields, finish_reason=None)


def usage(completion: Any, prompt: Any = 10, **more: Any) -> bytes:
    """A usage-only event."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return event({"choices": [], "usage": counts})


ROLE = delta(role="assistant", content=None)
STOP = choice(delta={}, finish_reason="stop")


def counted(text: str | None, tokens: int, finish: str | None = None) -> bytes:
    """One text event with continuous usage."""
    return event(chunk(text, tokens=tokens, finish=finish))


def words(count: int) -> list[bytes]:
    """``count`` one-word events without usage."""
    return [delta(content=f"w{i} ") for i in range(count)]
