"""What a session learns from one cell for the next. Bound to no event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmperf.measure.prompts import Prompt, PromptMaker
from pytest_llmperf.measure.requests import RequestForm


@dataclass
class Memory:
    """The one mutable object that outlives a cell."""

    prompts: PromptMaker
    form: RequestForm
    shared: dict[int, Prompt] = field(default_factory=dict)
    """Context -> the prompt its decode cells share, in the server's cache since it was sent."""
    distinct: dict[int, list[Prompt]] = field(default_factory=dict)
    """Context -> prompts of the streams, when each has its own."""
    first_token_s: dict[int, float] = field(default_factory=dict)
    """Context -> seconds to the first token of a cold request."""
    warmed_up: bool = False
    """The session's discarded prefill is done."""
    loaded: bool = False
    """The server has decoded under load: the session's first decode cell is behind it."""
    gauge_moves: bool | None = None
    """Whether the running gauge follows our load; None while unknown."""
    one_cache: bool | None = None
    """Whether one request warms the prompt for all streams; None while unknown."""
    tokens_per_chunk: float | None = None
    """Where the server only tells totals at a request's end."""

    def first_token_limit(self, context: int) -> float:
        """Seconds a cold request of this context may take to its first token.

        From the nearest smaller context that was measured, allowing for attention's square;
        without one, time for 100 tokens/s, slower than any server of interest.
        """
        smaller = [known for known in self.first_token_s if 0 < known <= context]
        if smaller:
            nearest = max(smaller)
            return 30 + 4 * self.first_token_s[nearest] * (context / nearest) ** 2
        return 60 + context / 100
