"""Records of requests on their way between processes: plain values, their columns as bytes.

The bytes are little-endian, whatever the machines at both ends are.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import fields
from typing import Any

from pytest_llmperf.client.record import StreamRecord

_COLUMNS = {"stamps": "d", "tokens": "q", "chunks": "q"}
_TIMES = ("sent_at", "headers_at", "ended_at")
_NAMES = [field.name for field in fields(StreamRecord)]

Packed = list[list[tuple[Any, ...]]]


def pack(streams: list[list[StreamRecord]]) -> Packed:
    """What ``unpack`` makes the same records of, in the types that execnet sends."""
    return [
        [
            tuple(
                _ordered(array(_COLUMNS[name], getattr(record, name))).tobytes()
                if name in _COLUMNS
                else getattr(record, name)
                for name in _NAMES
            )
            for record in records
        ]
        for records in streams
    ]


def unpack(packed: Packed, offset: float = 0.0) -> list[list[StreamRecord]]:
    """The records that were packed, by our clock.

    Args:
        offset: seconds by which the clock of the machine that packed them is ahead of ours.
    """
    return [[_record(values, offset) for values in records] for records in packed]


def _record(values: tuple[Any, ...], offset: float) -> StreamRecord:
    named = dict(zip(_NAMES, values, strict=True))
    for name, code in _COLUMNS.items():
        column: array[Any] = array(code)
        column.frombytes(named[name])
        named[name] = _ordered(column).tolist()
    if offset:
        named["stamps"] = [at - offset for at in named["stamps"]]
        named |= {name: named[name] - offset for name in _TIMES if named[name] is not None}
    return StreamRecord(**named)


def _ordered(column: array[Any]) -> array[Any]:
    """From this machine's byte order to little-endian, or back; in place."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
