"""Bytes of one answer -> its record: what counts as a token, what is an error, when it is over."""

from __future__ import annotations

import io
import zlib

from pytest_llmperf.client.chunk import ODD, Chunk, ErrorSaid, NoChunk, Usage, read_chunk
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.client.sse import EventParser, EventTooLarge
from pytest_llmperf.client.words import error_words, one_line

HASHED_CHARS = 1024
TAIL_CHARS = 8192
MAX_ARRIVALS = 2**18
"""Per request; far above any real one, so that a flood cannot fill the memory."""
_TEXTLESS = 16
"""Tokens that may come without any text: special ones, or the first part of a character."""
_UNCOUNTED = 16
"""Chunks of text in a row that continuous usage may leave out before it is taken to have ended."""
_KEPT_TEXT = 2**20
_REASON_CHARS = 40
_ID_CHARS = 200
_HEARTBEATS = (b"", b'""', b"null")
MAX_MALFORMED = 0.01
"""Share of a stream's frames."""
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
        "_doubtful",
        "_frames",
        "_kept",
        "_last",
        "_odd_frame",
        "_parser",
        "_reasoned",
        "_start",
        "_text",
        "_texts",
        "_uncounted",
        "record",
    )

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self._text = io.StringIO()
        self._kept = 0
        """Characters in it."""
        self._parser = EventParser(self._take_event)
        self._at = 0.0
        self._continuous: bool | None = None
        self._last = 0
        self._texts = 0
        self._uncounted = 0
        self._reasoned = False
        self._start = ""
        self._frames = 0
        self._odd_frame = ""
        self._doubtful = False
        """A frame that may have been a chunk was lost, and no count has come since."""

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
        if record.malformed > MAX_MALFORMED * self._frames or self._doubtful:
            raise StreamFailed(
                f"{record.malformed} of {self._frames} frames were malformed, such as an event that"
                f" is no JSON object: {self._odd_frame}"
            )
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
        text = self._text.getvalue()
        start = self._start or text[:HASHED_CHARS]
        self.record.text_hash = zlib.crc32(start.encode("utf-8", "surrogatepass"))
        self.record.tail = text[-TAIL_CHARS:]

    def _take_event(self, kind: bytes, data: bytes) -> None:
        record = self.record
        if kind == b"error" and data.strip() not in (b"", b"[DONE]") and not record.done:
            raise StreamFailed(error_words(data.decode("utf-8", "replace")))
        if record.done:
            return
        self._frames += 1
        try:
            chunk = read_chunk(data)
        except ErrorSaid as said:
            raise StreamFailed(str(said)) from None
        except NoChunk:
            self._take_other(data.strip())
        else:
            self._take_chunk(chunk)

    def _take_other(self, data: bytes) -> None:
        """The data of an event that is no chunk."""
        if data == b"[DONE]":
            self.record.done = True
        elif data.startswith(b":"):
            # a comment that something on the way made data of: it cannot have been a chunk
            self.record.rewrapped += 1
        elif data not in _HEARTBEATS:
            self.record.malformed += 1
            self._doubtful = True
            self._odd_frame = self._odd_frame or one_line(data.decode("utf-8", "replace")[:200])

    def _take_chunk(self, chunk: Chunk) -> None:
        record, choices, usage = self.record, chunk.choices, chunk.usage
        if not record.id and chunk.id:
            record.id = chunk.id[:_ID_CHARS]
        if chunk.timings is not None and record.cached_tokens is None:
            record.cached_tokens = chunk.timings.cache_n
        text = choices[0].said if len(choices) == 1 else "".join(c.said for c in choices)
        self._count(text, self._take_usage(usage) if usage else None, usage_only=not choices)
        for choice in choices:
            self._reasoned = self._reasoned or choice.reasoned
            if reason := choice.finish_reason:
                record.finish_reason = one_line(reason)[:_REASON_CHARS]
                if reason in _FAILED_REASONS:
                    raise StreamFailed(f"the server ended the request: finish_reason {reason!r}")

    def _take_usage(self, usage: Usage) -> int | None:
        record = self.record
        if usage.prompt_tokens:
            record.prompt_tokens = usage.prompt_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            record.cached_tokens = details.cached_tokens
        if usage.completion_tokens_details is not None:
            record.hidden_tokens = usage.completion_tokens_details.reasoning_tokens
        if usage.completion_tokens == ODD:
            record.usage_odd = True
            return None
        if usage.completion_tokens is not None:
            self._doubtful = False
        return usage.completion_tokens

    def _count(self, text: str, count: int | None, usage_only: bool = False) -> None:
        """One chunk: its text, and the cumulative usage it carried."""
        record = self.record
        if text:
            self._texts += 1
            self._kept += self._text.write(text)
            if self._kept > _KEPT_TEXT:
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
        text = self._text.getvalue()
        self._start = self._start or text[:HASHED_CHARS]
        self._text = io.StringIO()
        self._kept = self._text.write(text[-TAIL_CHARS:])
