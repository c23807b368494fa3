"""What one streaming request did, as it was seen at the socket. Filled by the stream reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

End = Literal["finished", "failed", "cancelled"]


@dataclass(slots=True)
class StreamRecord:
    """Stamped arrivals of one request.

    An *arrival* is an event that carried generation: its cumulative usage rose, or (without
    continuous usage) it carried text of any channel. Role-only, comment, usage-only and empty
    events are not arrivals. ``stamps``, ``tokens`` and ``chunks`` run in parallel: entry i says
    that at ``stamps[i]`` (seconds, monotonic, taken when the bytes arrived) the request had
    generated ``tokens[i]`` tokens so far by usage, in ``chunks[i]`` text-carrying chunks so far.
    Without continuous usage ``tokens`` stays empty. Stamps never fall; equal stamps came in one
    read.
    """

    sent_at: float | None = None
    """The socket write of the request; connection set-up is over by then."""
    headers_at: float | None = None
    status: int | None = None
    id: str = ""
    """What the server calls the request, from its first chunk."""
    stamps: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    """The highest usage seen; final when ``end`` is "finished"."""
    hidden_tokens: int | None = None
    """Tokens of reasoning that the final usage counts though no chunk carried reasoning."""
    usage_odd: bool = False
    """A count that cannot be believed was seen and left out: it fell, or was no whole number."""
    malformed: int = 0
    """Frames that were no JSON; each may have been a chunk."""
    rewrapped: int = 0
    """Frames that something on the way had made of comments."""
    usage_seen: Literal["continuous", "final"] | None = None
    finish_reason: str | None = None
    done: bool = False
    """``[DONE]`` was seen."""
    end: End | None = None
    """None while it runs."""
    error: str = ""
    """Why it failed: the server's own words where it gave any, secrets removed."""
    ended_at: float | None = None
    text_hash: int = 0
    """Hash of the first 1,024 characters of the generated text, the same in every process, so that
    identical streams are found however long each ran; 0 while it runs and without text."""
    tail: str = ""
    """Up to the last 8,192 characters of generated text, to find repetition loops; may be filled
    only when the stream ends."""

    @property
    def first_token_at(self) -> float | None:
        return self.stamps[0] if self.stamps else None
