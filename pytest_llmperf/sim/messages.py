"""What passes between the simulated engine and whoever drives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pytest_llmperf.model.errors import LlmPerfError


class TooLong(LlmPerfError):
    """A request asks for more tokens than the model's length; an engine answers it with 400."""

    def __init__(self, prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"the model's maximum context length is {max_model_len} tokens, but the request has "
            f"{prompt_tokens} prompt tokens and asks for {max_tokens} more; shorten either"
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len


@dataclass(slots=True)
class SimRequest:
    """A request as the front end hands it over."""

    id: str
    prompt_tokens: int
    block_hashes: Sequence[int]
    """Chained hashes of the prompt's full blocks, in order (`EngineModel.block_size` each)."""
    max_tokens: int
    ignore_eos: bool = True


class Tokens(NamedTuple):
    """What one request got from a step."""

    id: str
    new: int
    total: int
    """Generated so far, these included."""
    first: bool
    finish: Literal["stop", "length"] | None


class Admission(NamedTuple):
    """A request that left the queue in a step."""

    id: str
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    again: bool
    """It had been admitted before and was preempted."""


@dataclass(slots=True)
class Step:
    """One forward pass. Everything in it takes effect when its duration is over."""

    duration_s: float
    tokens: list[Tokens] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    waiting: bool = False
    """Nothing runs; the front end is at work. May be cut short by a request that comes or goes."""


@dataclass(slots=True)
class Stats:
    """Gauges as of the last step, and totals since the start."""

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    """Fraction of the KV blocks in use."""
    steps: int = 0
    requests: int = 0
    """Finished or cancelled."""
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
