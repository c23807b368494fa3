"""What must hold for any bytes: each target takes one input and raises if something does not."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from typing import Any
from unittest.mock import patch

from pytest_llmperf.client import reader, sse
from pytest_llmperf.client.chunk import read_leniently
from pytest_llmperf.client.reader import ChunkReader, StreamFailed
from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.engines import prometheus
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.llamacpp import LlamaCpp
from pytest_llmperf.engines.sglang import SgLang
from pytest_llmperf.engines.tgi import Tgi
from pytest_llmperf.engines.vllm import Vllm, kv_budget

ENGINES: list[type[Generic]] = [Vllm, SgLang, LlamaCpp, Tgi]
Target = Callable[[bytes], None]

MAX_EVENT = 4096
KEPT_TEXT = 1024
SMALL: dict[str, Any] = {"HASHED_CHARS": 16, "TAIL_CHARS": 64, "_KEPT_TEXT": KEPT_TEXT,
                         "MAX_ARRIVALS": 64}  # fmt: skip
_FLOATS = re.compile(r"[^\s{}=\",]+")


def check_stream(body: bytes) -> None:
    """The stream reader: the same record for any cut, decoded typed or leniently, bounded memory,
    and no number that is not in the body. Its limits are lowered, to be met."""
    with _small_limits():
        whole = _read([body])
        assert _read(_cut(body)) == whole, "a cut changes the record"
        with patch.object(reader, "read_chunk", read_leniently):
            assert _read([body]) == whole, "typed decoding changes the record"
    for number in (
        *(whole["completion_tokens"], whole["prompt_tokens"]),
        *(whole["cached_tokens"], whole["hidden_tokens"]),
        *whole["tokens"],
    ):
        assert number is None or (type(number) is int and b"%d" % number in body), number


def check_metrics(page: bytes) -> None:
    """The metrics reader: whatever is made of a page is None or a finite number, not negative, and
    every sample is one that the page has."""
    text = page.decode("utf-8", "replace")
    sent = {_float(word) for word in _FLOATS.findall(text)}
    for engine in ENGINES:
        scrape = prometheus.parse(text, engine.prefixes)
        for samples in scrape.samples.values():
            assert all(value in sent for _, value in samples), samples
        gauges = engine.__new__(engine).read_gauges(0.0, scrape)
        for name, value in asdict(gauges).items():
            assert value is None or (isfinite(value) and value >= 0), (name, value)
        budget, source = kv_budget(scrape.labels("vllm:cache_config_info"), 4096)
        assert source
        assert budget is None or budget >= 4096


TARGETS: dict[str, Target] = {"stream": check_stream, "metrics": check_metrics}


@contextmanager
def _small_limits() -> Iterator[None]:
    with patch.multiple(reader, **SMALL), patch.multiple(sse, MAX_EVENT=MAX_EVENT, MAX_STRAY=64):
        yield


def _cut(body: bytes) -> list[bytes]:
    """The body in pieces; the same for the same body."""
    dice = random.Random(zlib.crc32(body))
    mean = dice.choice([1, 3, 40, 400])
    pieces, at = [], 0
    while at < len(body):
        size = dice.randint(1, 2 * mean)
        pieces.append(body[at : at + size])
        at += size
    return pieces


def _read(pieces: list[bytes]) -> dict[str, Any]:
    """All of a record but its stamps, of which only their number is the same for every cut."""
    record = StreamRecord(sent_at=0.0)
    chunks = ChunkReader(record)
    try:
        for i, piece in enumerate(pieces):
            chunks.feed(piece, float(i))
            assert len(chunks._text.getvalue()) <= KEPT_TEXT + MAX_EVENT * 6, (
                "text is kept without bound"
            )
            assert len(chunks._parser._line) <= MAX_EVENT, "a line is kept without bound"
        chunks.close()
        record.end = "finished"
    except StreamFailed as failure:
        record.end, record.error = "failed", str(failure)
        assert record.error.isprintable()
    chunks.settle()
    assert len(record.stamps) == len(record.chunks) <= SMALL["MAX_ARRIVALS"] + 1
    assert len(record.tokens) in (0, len(record.stamps))
    assert record.tokens == sorted(set(record.tokens))
    assert record.chunks == sorted(record.chunks)
    facts = {name: getattr(record, name) for name in StreamRecord.__slots__}
    return {**facts, "stamps": len(record.stamps)}


def _float(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
