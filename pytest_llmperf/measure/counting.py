"""Records of requests -> cumulative token curves, and where their counts come from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure.window import Curve, Pace
from pytest_llmperf.model.result import TokenSource

Records = Sequence[Sequence[StreamRecord]]
"""Per stream, its requests in order."""


@dataclass(frozen=True)
class Counted:
    """The curves of a cell. One source for all of its requests: the weakest that any needed."""

    streams: list[list[Curve]]
    source: TokenSource
    tokens_per_chunk: float | None
    """Of requests that told their total at their end; None where none did."""


def count(records: Records, tokens_per_chunk: float | None = None) -> Counted:
    """Count the tokens of every request.

    Cumulative usage where every request with an arrival had it. Else chunks, scaled per request by
    its final usage; a request cut off before it told its total is scaled by the mean of those
    that did, or by ``tokens_per_chunk`` from an earlier cell. Else bare chunks. A total
    that counts reasoning which was never streamed says nothing of the chunks that were.
    """
    requests = [record for stream in records for record in stream if record.stamps]
    if requests and all(len(record.tokens) == len(record.stamps) for record in requests):
        return Counted(_curves(records, None), "usage", tokens_per_chunk)
    told = [record for record in requests if _total(record)]
    chunks = sum(record.chunks[-1] for record in told)
    if chunks:
        tokens_per_chunk = sum(_total(record) for record in told) / chunks
    source: TokenSource = "chunks" if tokens_per_chunk is None else "estimated"
    return Counted(_curves(records, tokens_per_chunk or 1.0), source, tokens_per_chunk)


def _total(record: StreamRecord) -> int:
    """Tokens that a finished request says it streamed; 0 where it does not, or counts more."""
    if record.end != "finished" or record.hidden_tokens:
        return 0
    return record.completion_tokens or 0


def _curves(records: Records, mean_scale: float | None) -> list[list[Curve]]:
    streams = [
        [_curve(record, mean_scale) for record in stream if record.sent_at is not None]
        for stream in records
    ]
    paces = [pace for stream in streams for curve in stream if (pace := curve.pace) is not None]
    if not paces:
        return streams
    usual = Pace(median(p.seconds for p in paces), median(p.per_chunk for p in paces))
    return [[replace(curve, usual=usual) for curve in stream] for stream in streams]


def _curve(record: StreamRecord, mean_scale: float | None) -> Curve:
    assert record.sent_at is not None
    if mean_scale is None:
        tokens: list[float] = list(record.tokens)
    else:
        total = _total(record)
        scale = total / record.chunks[-1] if total and record.chunks else mean_scale
        tokens = [chunks * scale for chunks in record.chunks]
    ended = inf if record.ended_at is None else record.ended_at
    return Curve.of(record.sent_at, record.stamps, tokens, ended, record.end == "finished")
