"""Records of requests on their way between processes: plain values, their columns as bytes."""

from __future__ import annotations

from array import array
from dataclasses import fields
from typing import Any

from pytest_llmperf.client.record import StreamRecord

_COLUMNS = {"stamps": "d", "tokens": "q", "chunks": "q"}
_NAMES = [field.name for field in fields(StreamRecord)]

Packed = list[list[tuple[Any, ...]]]


def pack(streams: list[list[StreamRecord]]) -> Packed:
    """What ``unpack`` makes the same records of, in the types that execnet sends."""
    return [
        [
            tuple(
                array(_COLUMNS[name], getattr(record, name)).tobytes()
                if name in _COLUMNS
                else getattr(record, name)
                for name in _NAMES
            )
            for record in records
        ]
        for records in streams
    ]


def unpack(packed: Packed) -> list[list[StreamRecord]]:
    """The records that were packed, on a machine of the same byte order."""
    return [[_record(values) for values in records] for records in packed]


def _record(values: tuple[Any, ...]) -> StreamRecord:
    named = dict(zip(_NAMES, values, strict=True))
    for name, code in _COLUMNS.items():
        column: array[Any] = array(code)
        column.frombytes(named[name])
        named[name] = column.tolist()
    return StreamRecord(**named)
