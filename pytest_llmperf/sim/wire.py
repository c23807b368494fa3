"""What the two personalities have in common: the facts they answer from, and their Protocols."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Served:
    """The simulated server as it shows itself. Lengths in tokens."""

    profile: str
    model: str
    root: str
    """The model's repository or path."""
    version: str
    max_model_len: int
    """What one request may use, prompt and answer."""
    kv_tokens: int
    block_size: int
    slots: int
    """Requests that run at the same time."""
    created: int
    """Unix seconds."""


@dataclass
class Job:
    """One completion request as a personality answers it."""

    id: str
    chat: bool
    model: str
    created: int
    prompt_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    cached_tokens: int = 0
    """Known once the request is admitted."""
    usage: bool = True
    usage_factor: float = 1.0


@dataclass(frozen=True)
class Times:
    """How long a request took, in seconds."""

    prefill: float
    decode: float


@dataclass(frozen=True)
class Counters:
    """What the engine did since it started; gauges as of now."""

    running: float
    waiting: float
    kv_use: float
    preemptions: float
    prompt_tokens: float
    generated_tokens: float
    prefix_queries: float
    prefix_hits: float
    drafts: float
    draft_tokens: float
    accepted: float
    steps: float
    sequence_steps: float
    """A step over n sequences counts n times."""
    finished: float
    prefill_s: float
    decode_s: float
    longest: float
    """Tokens of the longest sequence so far."""

    @property
    def computed_tokens(self) -> float:
        return self.prompt_tokens - self.prefix_hits

    @property
    def prompt_tok_s(self) -> float:
        return self.computed_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tok_s(self) -> float:
        return self.generated_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def busy_slots(self) -> float:
        return self.sequence_steps / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: Headers = ()
    close: bool = False


class Stream(Protocol):
    """Bytes of one streamed answer."""

    def open(self) -> bytes:
        """What stands before the first text; comes together with it."""
        ...

    def chunk(self, pieces: list[bytes], made: int) -> bytes:
        """The text of a step's tokens, one piece each; ``made`` tokens so far."""
        ...

    def close(self, pieces: list[bytes], made: int, reason: str, times: Times) -> bytes:
        """The last text and all that follows it, the end marker included."""
        ...


class Personality(Protocol):
    """Wire habits of one engine."""

    headers: Headers
    stream_headers: Headers
    headers_wait: bool
    """Response headers are held back until the request is admitted."""
    checks_model: bool
    id_prefix: tuple[str, str]
    """Of ids of completions, and of chats."""

    def needs_key(self, path: str) -> bool:
        """Whether a path is closed to callers without the key, where there is one."""
        ...

    def stream(self, job: Job) -> Stream: ...

    def whole(self, job: Job, text: bytes, made: int, reason: str, times: Times) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def error_event(self, status: int, message: str) -> bytes:
        """An error inside a stream that has status 200, with what follows it there."""
        ...

    def refuse(self, status: int, message: str = "") -> Answer:
        """An HTTP error: 400, 401, 404, 405, 429, 500 or 503."""
        ...

    def bad_json(self, problem: json.JSONDecodeError) -> Answer: ...

    def unknown_model(self, model: str) -> Answer: ...

    def reject_length(self, prompt_tokens: int, max_tokens: int | None) -> Answer | None:
        """Whether a request of these lengths is refused; lengths in tokens."""
        ...

    def get(self, path: str, now: Counters) -> Answer | None:
        """The engine's own information pages; None where it has no such page."""
        ...

    def metrics(self, now: Counters, gauges: bool) -> Answer:
        """Prometheus text; without ``gauges`` the request and KV series are left out."""
        ...

    def tokenized(self, body: dict[str, Any]) -> Answer: ...

    def detokenized(self, text: str) -> Answer: ...

    def templated(self, prompt: str) -> Answer | None:
        """A chat as one text; None where the engine has no such call."""
        ...


def dump(value: Any) -> bytes:
    """JSON as engines write it, without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def answer(value: Any, status: int = 200, **more: Any) -> Answer:
    """A JSON answer."""
    return Answer(status, dump(value), **more)


def samples(series: list[tuple[str, str, str, str, float]]) -> bytes:
    """Prometheus text of (name, type, help, labels, value); labels with their braces."""
    lines = []
    for name, kind, text, labels, value in series:
        lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name}{labels} {value}\n")
    return "".join(lines).encode()
