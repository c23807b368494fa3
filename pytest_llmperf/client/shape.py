"""The bytes around the text of a server's chunks, learned from one of them.

A stream's chunks differ in little: the text and some counts. A shape is what stays. A chunk that
has it needs no JSON parser, which would cost the client more than all the rest of its work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

_TEXT_STARTS = re.compile(rb'"(?:content|reasoning_content|reasoning|text)": ?"').finditer
_STRING = re.compile(rb'[^"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*)*').match
_NUMBERS = re.compile(rb'(?:(?<=":)|(?<=": ))\d{1,9}(?=[,}])')
_COUNT_KEYS = (b'"completion_tokens":', b'"completion_tokens": ')
_NUMBER = rb"(?:0|[1-9][0-9]{0,8})"
_MOST_STARTS = 8
"""Places of one chunk tried as that of its text: each costs as much as parsing the chunk."""
_MOST_LITERAL = 512
"""Bytes between and after the numbers: compiling them takes a microsecond each."""
_PROBE = "probe"

Extract = Callable[[dict[str, Any]], tuple[str, int | None] | None]
"""What a parsed chunk carries: its text and its count; None if it carries anything else too."""


class Shape:
    """One shape: literal bytes before and after the text, then numbers with literals between."""

    __slots__ = ("_after", "_before", "_numbers", "_start", "counted")

    def __init__(self, before: bytes, after: bytes, literals: Sequence[bytes]) -> None:
        self._before = before
        self._start = len(before)
        self._after = after
        keyed = [i for i, key in enumerate([after, *literals[:-1]]) if key.endswith(_COUNT_KEYS)]
        self.counted = bool(keyed and literals)
        """Whether chunks of this shape carry a count."""
        groups = [_NUMBER] * len(literals)
        if self.counted:
            groups[keyed[-1]] = b"(" + _NUMBER + b")"
        pattern = b"".join(g + re.escape(x) for g, x in zip(groups, literals, strict=True))
        self._numbers = re.compile(pattern).fullmatch

    def match(self, data: bytes) -> tuple[bytes, int | None] | None:
        """Text (as the inside of a JSON string) and cumulative count of a chunk of this shape; None
        for any other, which then needs the parser."""
        if not data.startswith(self._before):
            return None
        found = _STRING(data, self._start)
        end = found.end() if found else 0
        if not data.startswith(self._after, end):
            return None
        numbers = self._numbers(data, end + len(self._after))
        if numbers is None:
            return None
        return data[self._start : end], int(numbers[1]) if self.counted else None


def learn_shape(data: bytes, extract: Extract) -> Shape | None:
    """The shape of this chunk, if it is one that carries a text, perhaps a count, and no more.

    It is put to the proof: a chunk of that shape with another text and other numbers must parse to
    just those.
    """
    for start in islice(_TEXT_STARTS(data), _MOST_STARTS):
        found = _STRING(data, start.end())
        if found is None:
            continue
        before, after = data[: start.end()], data[found.end() :]
        literals = _NUMBERS.split(after)
        if sum(map(len, literals[1:])) > _MOST_LITERAL:
            continue
        shape = Shape(before, literals[0], literals[1:])
        probe = before + _PROBE.encode() + b"7".join(literals)
        try:
            carried = extract(json.loads(probe.decode()))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            continue
        if carried == (_PROBE, 7 if shape.counted else None):
            return shape
    return None
