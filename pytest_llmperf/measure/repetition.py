"""Generated text that went round in circles, or came out the same twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pytest_llmperf.client.record import StreamRecord

LOOP_CHARS = 4096
LOOP_CYCLES = 4
_PROBE_CHARS = 64


def loops(tail: str) -> bool:
    """Whether the text ends in at least 4 identical cycles over at least 4,096 characters."""
    probe = tail[-_PROBE_CHARS:]
    at = len(tail) - len(probe)
    while (at := tail.rfind(probe, 0, at + len(probe) - 1)) >= 0:
        period = len(tail) - len(probe) - at
        length = max(LOOP_CHARS, LOOP_CYCLES * period)
        if length > len(tail):
            return False
        end = tail[-length:]
        if end[period:] == end[:-period]:
            return True
    return False


def identical(records: Iterable[StreamRecord]) -> int:
    """How many requests began with the same text as another one; short ones are left out, as they
    may well agree by chance."""
    seen = Counter(r.text_hash for r in records if r.text_hash and len(r.tail) >= _PROBE_CHARS)
    return sum(count for count in seen.values() if count > 1)
