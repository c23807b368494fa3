"""What really happened, a JSON line per request, for tests to compare a client with.

Times are seconds of ``time.monotonic()``, which processes on one machine share. A line has::

    {"request": 3, "id": …, "chat": true, "prompt_tokens": …, "cached_tokens": …,
     "arrived": …, "admitted": …, "first_token": …, "ended": …, "preempted": 0,
     "end": "length" | "stop" | "gone" | "error" | "truncated" | "refused",
     "tokens": …, "steps": [[time, tokens of this step], …]}

``steps`` are stamped when a step's tokens are handed to the connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

_SLICE = 256
"""Steps formatted at a time: the interpreter's lock is not held long enough to delay a stream."""


@dataclass
class RequestTruth:
    """One request; what did not happen is None."""

    request: int
    id: str
    chat: bool
    prompt_tokens: int
    arrived: float
    cached_tokens: int = 0
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None
    end: str | None = None
    tokens: int = 0
    preempted: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)


class TruthFile:
    """Writes in a thread of its own; complete once it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._ended: SimpleQueue[RequestTruth | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, truth: RequestTruth) -> None:
        """Take a request that has ended."""
        self._ended.put(truth)

    def close(self) -> None:
        """Write all that was added."""
        self._ended.put(None)
        self._thread.join()

    def _write(self) -> None:
        with self._file as file:
            while (truth := self._ended.get()) is not None:
                for part in _format(truth):
                    file.write(part)
                file.flush()


def _format(truth: RequestTruth) -> Iterator[str]:
    facts = {name: value for name, value in vars(truth).items() if name != "steps"}
    yield json.dumps(facts)[:-1] + ', "steps": ['
    for start in range(0, len(truth.steps), _SLICE):
        part = truth.steps[start : start + _SLICE]
        yield ("," if start else "") + ",".join([f"[{at:.6f},{new}]" for at, new in part])
    yield "]}\n"


def read_truth(path: Path) -> list[RequestTruth]:
    """The requests of a truth file, in the order they ended."""
    return [RequestTruth(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
