"""The bytes around the text of a server's chunks, learned from one of them.

A stream's chunks differ in little: the text and some counts. A shape is what stays. A chunk that
has it needs no JSON parser, which would cost the client more than all the rest of its work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

_TEXT_STARTS = re.compile(rb'"(?:content|reasoning_content|reasoning|text)": ?"').finditer
_STRING = re.compile(rb'[^"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*)*').match
_NUMBERS = re.compile(rb'(?:(?<=":)|(?<=": ))\d{1,9}(?=[,}])')
_COUNT_KEYS = (b'"completion_tokens":', b'"completion_tokens": ')
_WHOLE = re.compile(rb"0|[1-9][0-9]{0,8}").fullmatch
_MOST_STARTS = 8
"""Places of one chunk tried as that of its text: each costs as much as parsing the chunk."""
_PROBE = "probe"

Extract = Callable[[dict[str, Any]], tuple[str, int | None] | None]
"""What a parsed chunk carries: its text and its count; None if it carries anything else too."""


class Shape:
    """One shape: literal bytes before the text, and between and after the numbers that follow."""

    __slots__ = ("_before", "_count_at", "_first", "_literals", "_start")

    def __init__(self, before: bytes, literals: list[bytes]) -> None:
        self._before = before
        self._start = len(before)
        self._first, *self._literals = literals
        keyed = [i for i, literal in enumerate(literals[:-1]) if literal.endswith(_COUNT_KEYS)]
        self._count_at = keyed[-1] if keyed else -1

    @property
    def counted(self) -> bool:
        """Whether chunks of this shape carry a count."""
        return self._count_at >= 0

    def match(self, data: bytes) -> tuple[bytes, int | None] | None:
        """Text (as the inside of a JSON string) and cumulative count of a chunk of this shape; None
        for any other, which then needs the parser."""
        if not data.startswith(self._before):
            return None
        found = _STRING(data, self._start)
        end = found.end() if found else 0
        if not data.startswith(self._first, end):
            return None
        text = data[self._start : end]
        at = end + len(self._first)
        count = None
        for i, literal in enumerate(self._literals):
            end = data.find(literal, at)
            number = data[at:end]
            if end < 0 or not _WHOLE(number):
                return None
            if i == self._count_at:
                count = int(number)
            at = end + len(literal)
        return (text, count) if at == len(data) else None


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
        shape = Shape(before, literals)
        probe = before + _PROBE.encode() + b"7".join(literals)
        try:
            carried = extract(json.loads(probe.decode()))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            continue
        if carried == (_PROBE, 7 if shape.counted else None):
            return shape
    return None
