"""What a client is asked to do at one point, and what it says it saw."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent / ".bench"
"""Where the server's binary, the peers' environments and their tokenizer go."""
MODEL = "truth"
PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Load:
    """``requests`` streaming requests, ``streams`` at a time, each of ``chunks`` chunks."""

    streams: int
    requests: int
    chunks: int
    per_chunk: int
    """Tokens in a chunk."""
    step_s: float
    """Seconds from chunk to chunk; 0 for a flood."""
    ttft_s: float
    window_s: float
    """How long clients look that restart their streams (ours)."""
    places: int = 8
    """Within a step, over which the streams are spread; 1 is lockstep."""
    changing: bool = False
    """Whether every chunk has a time stamp and timings of its own."""

    @property
    def tokens(self) -> int:
        """Of one request."""
        return self.chunks * self.per_chunk

    @property
    def name(self) -> str:
        pace = f"{1 / self.step_s:.0f}/s" if self.step_s else "flood"
        name = f"{self.streams} x {pace}" + (f" x {self.per_chunk}" * (self.per_chunk > 1))
        return name + " in lockstep" * (self.places == 1) + " changing" * self.changing


def paced(
    streams: int,
    per_chunk: int = 1,
    seconds: float = 5.0,
    *,
    rate: int = 50,
    places: int = 8,
    changing: bool = False,
) -> Load:
    """All streams at once, ``rate`` chunks a second each, first token after 100 ms."""
    chunks = round(seconds * rate)
    return Load(streams, streams, chunks, per_chunk, 1 / rate, 0.1, seconds, places, changing)


def flood(streams: int, per_chunk: int = 1, seconds: float = 5.0) -> Load:
    """About 10,000 chunks for each second, as fast as the client takes them."""
    requests = max(streams, 50)
    chunks = max(round(seconds * 10_000 / requests), 50)
    return Load(streams, requests, chunks, per_chunk, 0.0, 0.02, seconds)


@dataclass(frozen=True)
class Seen:
    """What a client says. None is what it does not say."""

    ttft_ms: float | None
    """Median over requests."""
    itl_ms: float | None
    """Mean time between tokens."""
    itl_p99_ms: float | None
    """Of single gaps of the whole run, its start included, where the client has such a figure."""
    tok_s: float | None
    t0: float | None = None
    t1: float | None = None
    """The window it looked at for ITL and tok/s; the whole run otherwise."""
    cpu_s: float | None = None
    chunks: int | None = None
    """Chunks that took ``cpu_s``, where the client measures its own."""
    bound: str | None = None
    """Why it says that it could not keep up."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Seen:
        return cls(**json.loads(path.read_text()))
