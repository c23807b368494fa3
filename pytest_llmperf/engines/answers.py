"""Reading what a server says, whatever it says: nothing here raises for a strange answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_llmperf.client.words import error_words
from pytest_llmperf.model.redact import redact

_LARGEST = 2**53


def read_json(text: str) -> Any:
    """The JSON value, or None for anything that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_object(text: str) -> dict[str, Any]:
    """The JSON object, or an empty one."""
    value = read_json(text)
    return value if isinstance(value, dict) else {}


def child(value: Any, *keys: str) -> Any:
    """What lies under these keys of nested objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; anything else in it, or instead of it, is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A positive whole number, also from digits; 0, "None", true and the like are unknown."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 17 else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        return None
    return value


def word(value: Any, limit: int = 200) -> str | None:
    """A text on one line, cut to ``limit`` characters; empty, "None" and "null" are unknown."""
    if not isinstance(value, str):
        return None
    text = " ".join("".join(c if c.isprintable() else " " for c in value[: 4 * limit]).split())
    return None if text.lower() in ("", "none", "null") else text[:limit]


def complaint(text: str) -> str:
    """A server's own words in an error answer, on one line, secrets removed."""
    return redact(word(error_words(text), 300) or "no text")
