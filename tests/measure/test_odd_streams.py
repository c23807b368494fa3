"""Servers that send many tokens at once: the true speed and a name for the TTFT, or INVALID."""

from __future__ import annotations

import asyncio

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure import validity
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.summary import summarise
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import ClientHealth, Measurement, ServerInfo, Status
from pytest_llmperf.model.settings import Workload
from tests.measure.paced import FakeEngine, Paced, measuring, quick_threads, tokens_of
from tests.measure.recorded import request, stream
from tests.measure.test_truth import Scenario, measure_all

SERVER = ServerInfo(engine="test", model="m", speculative=False)


def interval_of_ten() -> Scenario:
    """A token every 10 ms from 80 ms on, of which every tenth is sent with those before it."""
    paced = Paced(ttft=0.17, step=0.1, per_chunk=10)
    return Scenario(
        paced, 4, max_tokens=100, engine=lambda _: FakeEngine(counts=tokens_of), duration_s=5.0
    )


def test_chunks_of_ten_tokens_have_the_true_speed_and_a_named_ttft() -> None:
    for _ in range(3):
        (cell,) = measure_all([interval_of_ten()])
        if cell.kept_pace:
            break
    else:
        pytest.skip("this machine is too busy to keep a pace")
    found = cell.found
    assert (found.status, found.reason) == (Status.VALID, "")
    least, most = cell.true_tok_s()
    assert least * 0.995 <= (found.total_tok_s or 0.0) <= most * 1.005
    texts = {notice.code: notice.text for notice in found.warnings}
    assert texts["first-chunk"] == "TTFT is that of the first chunk of 10 tokens"
    assert "counters-disagree" not in texts


def whole_answers(flush: int, per_chunk: int) -> Measurement:
    """A cell whose answers of 40 tokens come all at once, 0.3 s after the request."""
    paced = Paced(role_at=0.0, ttft=0.3, step=0.0, flush=flush, per_chunk=per_chunk)

    async def main() -> Measurement:
        with measuring(paced, workload=Workload(max_tokens=40)) as (measurer, _):
            return await measurer.decode(Cell("decode", 512, 2))

    with pytest.MonkeyPatch.context() as patch, quick_threads():
        patch.setattr(validity, "client_bound", lambda health: None)
        return asyncio.run(main())


@pytest.mark.parametrize(
    ("flush", "per_chunk", "words"),
    [(1, 40, "40 tokens in one chunk"), (40, 1, "40 tokens in 40 chunks at once")],
)
def test_a_server_that_does_not_stream_is_invalid(flush: int, per_chunk: int, words: str) -> None:
    """A role chunk at once, and the answer at the end: neither a speed nor a TTFT was seen."""
    found = whole_answers(flush, per_chunk)
    assert found.status is Status.INVALID
    assert found.reason == f"the server does not stream: {words}"
    assert (found.ttft_ms, found.total_tok_s, found.itl_ms) == (None, None, None)


def why(*records: list[StreamRecord]) -> str | None:
    counted = count(records)
    cell = summarise(len(records), records, counted, 2.0, 9.0)
    return validity.invalid(cell, 1000, SERVER, ClientHealth())


def test_malformed_frames_are_named_and_beyond_one_percent_invalid() -> None:
    records = [stream(chunks=1000), stream(chunks=1000)]
    records[0][0].malformed = 2
    records[1][0].rewrapped = 300
    assert why(*records) is None
    cell = summarise(2, records, count(records), 2.0, 9.0)
    found = {n.code: n.text for n in validity.notices(cell, SERVER, 1000, buffered=False)}
    assert found["malformed-frames"] == (
        "302 malformed frames in 2 requests were left out, 300 of them comments sent as data"
    )
    records[0][0].malformed = 50
    assert "frames were malformed (limit 1%)" in (why(*records) or "")


def test_malformed_frames_without_any_usage_are_invalid() -> None:
    records = [[request(0.0, 0.1, 0.02, 600, usage=None)]]
    records[0][0].malformed = 1
    assert "no usage tells" in (why(*records) or "")


def test_short_answers_in_one_chunk_are_no_sign() -> None:
    """Eight tokens may be one chunk of a server that sends every tenth."""
    short = [stream(ttft=0.2, step=0.001, chunks=1, per_chunk=8, until=10.0)]
    assert "does not stream" not in (why(*short) or "")
    long = [stream(ttft=0.2, step=0.001, chunks=1, per_chunk=80, until=10.0)]
    assert "the server does not stream: 80 tokens in one chunk" in (why(*long) or "")
