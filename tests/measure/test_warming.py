"""What warms the streams' prompt, on servers with one cache for all and with one per slot."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.model.settings import Workload
from tests.measure.paced import FakeEngine, Paced, gauges_of, measuring, tokens_of

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
