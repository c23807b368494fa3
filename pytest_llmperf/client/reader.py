"""Bytes of one answer -> its record: what counts as a token, what is an error, when it is over."""

from __future__ import annotations

import json
import zlib
from typing import Any

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.shape import Shape, learn_shape
from pytest_llmperf.client.sse import EventParser, EventTooLarge
from pytest_llmperf.client.words import error_words, one_line

HASHED_CHARS = 1024
TAIL_CHARS = 8192
MAX_ARRIVALS = 2**18
"""Per request; far above any real one, so that a flood cannot fill the memory."""
MAX_COUNT = 10**9
_TEXTLESS = 16
"""Tokens that may come without any text: special ones, or the first part of a character."""
_UNCOUNTED = 16
"""Chunks of text in a row that continuous usage may leave out before it is taken to have ended."""
_KEPT_TEXT = 2**20
_REASON_CHARS = 40
_ID_CHARS = 200
_LEARNING = 3
"""Shapes learned in a row without one use, before a stream is left to the parser."""

_TEXT_CHANNELS = ("content", "reasoning_content", "reasoning", "refusal")
_REASONING_CHANNELS = ("reasoning_content", "reasoning", "reasoning_details")
_CALL_CHANNELS = ("tool_calls", "function_call", "reasoning_details")
_TEXT_KEYS = ("text", "thinking", "summary", "content", "function", "name", "arguments", "data")
_TOO_LARGE = "the server sent an event of more than 4 MiB"
_FAILED_REASONS = ("error", "abort")


class StreamFailed(Exception):
    """The answer says, or shows, that the request failed. The words are the server's."""


class ChunkReader:
    """Reads the body of one streaming answer into ``record``.

    ``feed`` may be called with any cut of the body and gives the same record for each, but for
    the stamps. It never takes a number that the server did not send: a count that is missing,
    falls, or is not a whole number leaves the last one standing.
    """

    __slots__ = (
        "_at",
        "_continuous",
        "_last",
        "_learning",
        "_parser",
        "_reasoned",
        "_shape",
        "_start",
        "_texts",
        "_uncounted",
        "record",
        "text",
    )

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self.text = bytearray()
        """Generated text so far, as the inside of a JSON string."""
        self._parser = EventParser(self._take_event)
        self._at = 0.0
        self._continuous: bool | None = None
        self._last = 0
        self._texts = 0
        self._uncounted = 0
        self._reasoned = False
        self._start = ""
        self._shape: Shape | None = None
        self._learning = _LEARNING

    def feed(self, data: bytes, at: float) -> None:
        """Takes bytes that arrived at ``at``, monotonic seconds.

        Raises:
            StreamFailed: the request has failed, with the reason for people.
        """
        self._at = at
        try:
            self._parser.feed(data)
        except EventTooLarge:
            raise StreamFailed(_TOO_LARGE) from None
        except RecursionError:
            raise StreamFailed("the server sent an event that is nested too deeply") from None

    def close(self) -> None:
        """The body has ended as HTTP says it may.

        Raises:
            StreamFailed: it is not a complete, successful stream.
        """
        try:
            self._parser.close()
        except EventTooLarge:  # by a line that nothing ended
            raise StreamFailed(_TOO_LARGE) from None
        record = self.record
        stray = self._parser.stray.strip()
        if not (record.done or record.finish_reason):
            if stray:
                raise StreamFailed(
                    f"not an event stream: {error_words(stray.decode('utf-8', 'replace'))}"
                )
            raise StreamFailed(
                "truncated: the stream ended without a finish_reason and without [DONE]"
            )
        credited = record.completion_tokens or 0
        if not record.stamps or (not self._texts and credited > _TEXTLESS):
            said = f", though usage says {credited}" if credited else ""
            raise StreamFailed(f"the stream ended without a single token of text{said}")

    def settle(self) -> None:
        """Fills what is only worked out once the request is over: the hash and tail of the text."""
        if self.record.stamps and self.record.completion_tokens == 0:
            # there were tokens, so a count of none is no count
            self.record.completion_tokens = None
            self.record.usage_odd = True
        if self._reasoned or self.record.usage_seen != "final":
            self.record.hidden_tokens = None
        text = _unescape(self.text)
        start = self._start or text[:HASHED_CHARS]
        self.record.text_hash = zlib.crc32(start.encode("utf-8", "surrogatepass"))
        self.record.tail = text[-TAIL_CHARS:]

    def _take_event(self, kind: bytes, data: bytes) -> None:
        if self._shape is not None and kind != b"error":
            carried = self._shape.match(data)
            if carried is not None:
                self._learning = _LEARNING
                self._count(*carried)
                return
        record = self.record
        data = data.strip()
        if not data or record.done:
            return
        if data == b"[DONE]":
            record.done = True
            self._shape = None
        elif kind == b"error":
            raise StreamFailed(error_words(data.decode("utf-8", "replace")))
        else:
            self._take_chunk(_parse(data))
            if self._learning and record.stamps:
                self._learning -= 1
                self._shape = learn_shape(data, _carried)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if _is_error(chunk):
            raise StreamFailed(error_words(chunk))
        if not self.record.id and isinstance(name := chunk.get("id"), str):
            self.record.id = name[:_ID_CHARS]
        choices = chunk.get("choices")
        choices = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
        usage = chunk.get("usage")
        count = self._take_usage(usage) if isinstance(usage, dict) else None
        timings = chunk.get("timings")
        if isinstance(timings, dict) and self.record.cached_tokens is None:
            self.record.cached_tokens = _whole(timings.get("cache_n"))
        self._reasoned = self._reasoned or any(map(_has_reasoning, choices))
        text = "".join(map(_choice_text, choices))
        self._count(_escape(text), count, usage_only=not choices)
        for choice in choices:
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                self.record.finish_reason = one_line(reason)[:_REASON_CHARS]
                if reason in _FAILED_REASONS:
                    raise StreamFailed(f"the server ended the request: finish_reason {reason!r}")

    def _take_usage(self, usage: dict[str, Any]) -> int | None:
        record = self.record
        prompt = _whole(usage.get("prompt_tokens"))
        if prompt:
            record.prompt_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _whole(details.get("cached_tokens"))
            if cached is not None:
                record.cached_tokens = cached
        details = usage.get("completion_tokens_details")
        if isinstance(details, dict):
            record.hidden_tokens = _whole(details.get("reasoning_tokens"))
        raw = usage.get("completion_tokens")
        count = _whole(raw)
        if raw is not None and count is None:
            record.usage_odd = True
        return count

    def _count(self, text: bytes, count: int | None, usage_only: bool = False) -> None:
        """One chunk: its text, and the cumulative usage it carried."""
        record = self.record
        if text:
            self._texts += 1
            self.text += text
            if len(self.text) > _KEPT_TEXT:
                self._forget_middle()
        risen = False
        if count is not None:
            if count > self._last:
                risen = True
                self._last = record.completion_tokens = count
            elif count < self._last:
                record.usage_odd = True
            elif record.completion_tokens is None and not self._last:
                record.completion_tokens = count
        if self._continuous is None and not usage_only and (text or risen):
            # the first chunk of generation tells whether counts come with every chunk
            self._continuous = risen
        self._uncounted = 0 if risen or not text else self._uncounted + 1
        if self._continuous and self._uncounted > _UNCOUNTED:
            # the counts have stopped, the text goes on: it is counted by chunks from its start,
            # and only a count that rises again can be its total
            self._continuous = False
            self._last = self._last if count is None else count
            record.completion_tokens = None
            record.usage_seen = "final"
            record.tokens.clear()
        if risen:
            record.usage_seen = "continuous" if self._continuous else "final"
        if risen if self._continuous else text:
            record.stamps.append(self._at)
            record.chunks.append(self._texts)
            if self._continuous:
                record.tokens.append(self._last)
            if len(record.stamps) > MAX_ARRIVALS:
                raise StreamFailed(f"more than {MAX_ARRIVALS:,} chunks in one answer")

    def _forget_middle(self) -> None:
        text = _unescape(self.text)
        self._start = self._start or text[:HASHED_CHARS]
        self.text[:] = _escape(text[-TAIL_CHARS:])


def _carried(chunk: dict[str, Any]) -> tuple[str, int | None] | None:
    """Text and count of a chunk that carries nothing else a record needs to know."""
    (choice,) = chunk["choices"]
    if _is_error(chunk) or choice.get("finish_reason") or "timings" in chunk:
        return None
    usage = chunk.get("usage")
    return _choice_text(choice), _whole(usage["completion_tokens"]) if usage else None


def _parse(data: bytes) -> dict[str, Any]:
    text = data.decode("utf-8", "replace")
    try:
        chunk = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise StreamFailed(f"an event that is no JSON object: {one_line(text[:200])}")
    return chunk


def _is_error(chunk: dict[str, Any]) -> bool:
    error = chunk.get("error")
    if error:
        return True
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return True
    return "choices" not in chunk and (error is not None or "detail" in chunk)


def _choice_text(choice: dict[str, Any]) -> str:
    """Text of any channel; the plain channels first, since some servers send both forms."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _text(choice.get("text"))
    plain = "".join(_text(delta.get(channel)) for channel in _TEXT_CHANNELS)
    return plain or "".join(_text(delta.get(channel)) for channel in _CALL_CHANNELS)


def _has_reasoning(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(_text(delta.get(name)) for name in _REASONING_CHANNELS)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return "".join(_text(value.get(key)) for key in _TEXT_KEYS)
    return ""


def _whole(value: object) -> int | None:
    """A count as the server sent it, or None: not null, text, a fraction, NaN or negative."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return None


def _escape(text: str) -> bytes:
    """Text as the inside of a JSON string."""
    return json.dumps(text)[1:-1].encode()


def _unescape(text: bytearray) -> str:
    decoded = text.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{decoded}"', strict=False))
    except ValueError:
        return decoded
