"""Values that a spec holds, and how their text is read. A ValueError says what is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_llmperf.model.grid import parse_tokens


@dataclass(frozen=True)
class Band:
    """Values from ``low`` up to but not including ``high``."""

    low: float
    high: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value < self.high


@dataclass(frozen=True)
class InBand:
    """A number that holds in a band of contexts (tokens) or concurrencies."""

    band: Band
    value: float


def read_positive(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not (0 < number < math.inf):
        raise ValueError("a number above 0 is wanted")
    return number


def read_not_negative(text: str) -> float:
    """A finite number, 0 included."""
    return 0.0 if text in ("0", "0.0") else read_positive(text)


def read_share(text: str) -> float:
    """A fraction between 0 and 1, both excluded."""
    number = float(text)
    if not (0 < number < 1):
        raise ValueError("a number between 0 and 1 is wanted")
    return number


def read_count(text: str) -> int:
    """A count of at least 1; ``8K`` and ``1M`` are understood."""
    number = parse_tokens(text)
    if number < 1:
        raise ValueError("a count of at least 1 is wanted")
    return number


def read_flag(text: str) -> bool:
    """0 or 1."""
    if text not in ("0", "1"):
        raise ValueError("0 or 1 is wanted")
    return text == "1"


def read_text(text: str) -> str:
    """Anything but nothing."""
    if not text:
        raise ValueError("it is empty")
    return text


def read_counts(text: str) -> Band:
    """``2``, ``2+`` or ``2-5``, the last one included."""
    low, plus, high = (text[:-1], "+", "") if text.endswith("+") else text.partition("-")
    return Band(read_count(low), math.inf if plus == "+" else read_count(high or low) + 1)


def read_bands(text: str) -> tuple[InBand, ...]:
    """``32K:0.9,128K+:0.8``: half an octave either side, since a context grows by the tokens
    generated; with a plus all that is higher too."""
    found = []
    for part in text.split(","):
        centre, _, value = part.partition(":")
        count = read_count(centre.removesuffix("+"))
        high = math.inf if centre.endswith("+") else count * math.sqrt(2)
        found.append(InBand(Band(count / math.sqrt(2), high), read_positive(value)))
    return tuple(found)
