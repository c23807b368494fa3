"""What one chunk of an answer carries, typed.

``read_chunk`` decodes the usual form straight into types, which takes a microsecond. A chunk with a
field of another type than usual (text in parts, a count as text, an error) is read again by
``read_leniently``, which takes whatever of it can be understood. For a chunk of the usual form both
give the same.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from pytest_llmperf.client.words import error_words

MAX_COUNT = 10**9
ODD = -1
"""Stands for a count that cannot be: negative, beyond all bounds, or no whole number."""
_TEXT_CHANNELS = ("content", "reasoning_content", "reasoning", "refusal")
_REASONING_CHANNELS = ("reasoning_content", "reasoning", "reasoning_details")
_CALL_CHANNELS = ("tool_calls", "function_call", "reasoning_details")
_TEXT_KEYS = ("text", "thinking", "summary", "content", "function", "name", "arguments", "data")

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Nothing = Annotated[list[None], msgspec.Meta(max_length=0)] | None


class NoChunk(Exception):
    """The data of an event is no JSON object."""


class ErrorSaid(Exception):
    """The chunk is an error; the words are the server's."""


class Delta(msgspec.Struct, gc=False):
    """New text, by channel. Text in the last three makes a chunk an unusual one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Nothing = None
    function_call: None = None
    reasoning_details: Nothing = None


class Choice(msgspec.Struct, gc=False):
    """One of the answers; we ask for one. ``text`` is of the completions endpoint."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        """Text of all channels."""
        delta = self.delta
        if delta is None:
            return self.text or ""
        text = delta.content or ""
        if delta.reasoning_content:
            text += delta.reasoning_content
        if delta.reasoning:
            text += delta.reasoning
        if delta.refusal:
            text += delta.refusal
        return text

    @property
    def reasoned(self) -> bool:
        """Whether some of it is reasoning."""
        delta = self.delta
        return delta is not None and bool(delta.reasoning_content or delta.reasoning)


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """Counts so far; None where the server does not tell."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Timings(msgspec.Struct, gc=False):
    """llama.cpp's own."""

    cache_n: Count | None = None


class Chunk(msgspec.Struct, gc=False):
    """One chunk. Fields that are not named here are skipped."""

    choices: list[Choice]
    id: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    object: str | None = None
    type: str | None = None
    error: None = None


_decode = msgspec.json.Decoder(Chunk).decode


def read_chunk(data: bytes) -> Chunk:
    """
    Raises:
        ErrorSaid: the server says that the request failed.
        NoChunk: it is no JSON object.
    """
    try:
        chunk = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return read_leniently(data)
    if chunk.object == "error" or chunk.type == "error":
        return read_leniently(data)
    return chunk


def read_leniently(data: bytes) -> Chunk:
    """The same for any JSON: what is of an unexpected type is left out, all text is found."""
    try:
        chunk = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise NoChunk
    if _is_error(chunk):
        raise ErrorSaid(error_words(chunk))
    choices, usage, timings = chunk.get("choices"), chunk.get("usage"), chunk.get("timings")
    return Chunk(
        [_choice(c) for c in choices if isinstance(c, dict)] if isinstance(choices, list) else [],
        id=_string(chunk.get("id")),
        usage=_usage(usage) if isinstance(usage, dict) else None,
        timings=Timings(_count(timings, "cache_n")) if isinstance(timings, dict) else None,
    )


def _is_error(chunk: dict[str, Any]) -> bool:
    error = chunk.get("error")
    if error:
        return True
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return True
    return "choices" not in chunk and (error is not None or "detail" in chunk)


def _choice(choice: dict[str, Any]) -> Choice:
    """Text of any channel; the plain channels first, since some servers send both forms."""
    reason, delta = _string(choice.get("finish_reason")), choice.get("delta")
    if not isinstance(delta, dict):
        return Choice(text=_text(choice.get("text")), finish_reason=reason)
    plain = "".join(_text(delta.get(channel)) for channel in _TEXT_CHANNELS)
    text = plain or "".join(_text(delta.get(channel)) for channel in _CALL_CHANNELS)
    reasoned = any(_text(delta.get(channel)) for channel in _REASONING_CHANNELS)
    return Choice(Delta(reasoning=text) if reasoned else Delta(text), finish_reason=reason)


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    made = _count(usage, "completion_tokens")
    if made is None and usage.get("completion_tokens") is not None:
        made = ODD
    return Usage(
        _count(usage, "prompt_tokens"),
        made,
        PromptDetails(_count(prompt, "cached_tokens")) if isinstance(prompt, dict) else None,
        CompletionDetails(_count(completion, "reasoning_tokens"))
        if isinstance(completion, dict)
        else None,
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return "".join(_text(value.get(key)) for key in _TEXT_KEYS)
    return ""


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(counts: dict[str, Any], name: str) -> int | None:
    """A count as the server sent it; None for null, text, a fraction, NaN, a negative number."""
    value = counts.get(name)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
