"""What warms the streams' prompt, on servers with one cache for all and with one per slot; and what
warms the server, before a session's first decode cell."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, Status
from pytest_llmperf.model.settings import Workload
from tests.measure.paced import QUICK, FakeEngine, Paced, gauges_of, measuring, tokens_of

MAX_TOKENS = 20
"""Requests end in the window, and tell with their last chunk how much was cached."""


class SlotCaches:
    """A prompt cache per slot: a request finds its prompt in as many slots as have had it, and
    takes one of the others while those are busy."""

    def __init__(self) -> None:
        self.paced = Paced(ttft=0.05, cached=self.cached)
        self.warm: Counter[int] = Counter()

    def cached(self, seen: bool, prompt: int) -> int:
        busy = self.paced.running - 1
        hit = busy < self.warm[prompt]
        self.warm[prompt] = max(self.warm[prompt], busy + 1)
        return prompt - 5 if hit else 0


def measure_all(paced: Paced, *cells: Cell) -> list[Measurement]:
    async def go() -> list[Measurement]:
        return [await measurer.decode(cell) for cell in cells]

    engine = FakeEngine(gauges_of(paced), counts=tokens_of)
    workload = Workload(max_tokens=MAX_TOKENS)
    with measuring(paced, engine=engine, workload=workload) as (measurer, _):
        return asyncio.run(go())


@pytest.mark.parametrize("contexts", [(256, 256, 512), (256, 512, 512)])
def test_a_slot_that_is_warm_from_an_earlier_cell_proves_nothing(contexts: list[int]) -> None:
    """Two streams at one context, again, and at the next one: warm every time."""
    found = measure_all(SlotCaches().paced, *(Cell("decode", context, 2) for context in contexts))
    assert [one.ttft_warm for one in found] == [True] * 3


def test_one_cache_for_all_is_not_warmed_for_every_stream_of_every_cell() -> None:
    paced = Paced(cached=lambda seen, prompt: prompt - 5 if seen else 0)
    cells = [Cell("decode", 256, 2), Cell("decode", 256, 3)]
    found = measure_all(paced, *cells)
    assert [one.ttft_warm for one in found] == [True] * 2
    unmeasured = [body for body in paced.bodies if body["max_tokens"] != MAX_TOKENS]
    # the fresh prompt, a scout for each cell, and once a request for each stream
    assert len(unmeasured) == 1 + 2 + 2


def measure_warmed(paced: Paced, *cells: Cell) -> list[Measurement]:
    """With the load before the first decode cell, of half a second."""

    async def go() -> list[Measurement]:
        return [await measurer.decode(cell) for cell in cells]

    engine = FakeEngine(gauges_of(paced), counts=tokens_of)
    with measuring(paced, engine=engine, timing=replace(QUICK, warm_load_s=0.5)) as (measurer, _):
        return asyncio.run(go())


def test_the_first_decode_cell_of_a_session_meets_a_warm_server() -> None:
    """A server whose first load of two runs at half its speed: the cell is measured after that, as
    it is within a whole run. The other cells of the session need no load of their own."""
    cell = Cell("decode", 256, 2)
    paced = Paced(step=lambda number: 0.04 if number < 4 else 0.02)
    first, second = measure_warmed(paced, cell, cell)
    assert first.itl_ms == pytest.approx(20, rel=0.2)
    assert second.itl_ms == pytest.approx(20, rel=0.2)
    loads = [body for body in paced.bodies if body["max_tokens"] != 1]
    assert len(loads) == 3 * 2


def test_a_request_that_fails_in_the_warm_up_is_not_passed_over() -> None:
    """It is the server's failure as much as one in the window; the next cell warms up again."""
    cell = Cell("decode", 256, 2)
    paced = Paced(refuse=lambda number, body: (500, "out of luck") if number == 3 else None)
    first, second = measure_warmed(paced, cell, cell)
    assert first.status is Status.INVALID
    assert "out of luck" in first.reason
    assert second.status is Status.VALID
    assert len([body for body in paced.bodies if body["max_tokens"] != 1]) == 3 * 2


def test_a_cell_that_has_no_room_in_the_warm_up_does_not_fit() -> None:
    """In the server's words, as when it is refused while it is measured."""
    words = "This model's maximum context length is 16 tokens"
    paced = Paced(refuse=lambda n, body: (400, words) if body["max_tokens"] != 1 else None)
    (found,) = measure_warmed(paced, Cell("decode", 256, 2))
    assert found.status is Status.OVER_CAPACITY
    assert "no room" in found.reason
