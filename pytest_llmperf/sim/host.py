"""Host work on requests before the scheduler sees them, shared out among those that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_SAME = 1e-9
"""Seconds within which requests are done together."""

T = TypeVar("T")


class HostQueue(Generic[T]):
    """Requests at the front end: parsed, templated and tokenized side by side by one process.

    Each advances at the speed that the number of requests there at the moment allows, so that a
    burst is through together and late, a lone request soon.

    Args:
        seconds: time for one request of (so many tokens), while (so many) are there all along.
    """

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        self._seconds = seconds
        self._left: dict[T, float] = {}
        self._tokens: dict[T, int] = {}
        self._at = 0.0

    def __len__(self) -> int:
        return len(self._left)

    def add(self, key: T, tokens: int, now: float) -> None:
        """A request comes. Call `done` for this moment before."""
        self._at = now
        self._left[key] = 1.0
        self._tokens[key] = tokens

    def remove(self, key: T) -> None:
        """A request goes, done or not; unknown ones are ignored."""
        self._left.pop(key, None)
        self._tokens.pop(key, None)

    def next_done(self) -> float:
        """When the next request is done if none comes; there must be one."""
        return self._at + min(self._remaining().values())

    def done(self, now: float) -> Iterator[T]:
        """Take out the requests that are done by ``now``, in order."""
        while self._left:
            remaining = self._remaining()
            shortest = min(remaining.values())
            passed = min(shortest, now - self._at)
            for key, seconds in remaining.items():
                if seconds <= passed + _SAME:
                    self.remove(key)
                    yield key
                else:
                    self._left[key] *= 1 - passed / seconds
            self._at += passed
            if passed < shortest:
                break
        self._at = now

    def _remaining(self) -> dict[T, float]:
        """Seconds that each request still takes at today's speed."""
        count = len(self._left)
        whole = {tokens: self._seconds(count, tokens) for tokens in set(self._tokens.values())}
        return {key: left * whole[self._tokens[key]] for key, left in self._left.items()}
