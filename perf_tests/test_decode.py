"""Sustained decode speed, per context length and number of simultaneous requests."""

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.run.fixture import Llm

pytestmark = pytest.mark.asyncio


async def test_decode(llm: Llm, decode_cell: Cell) -> None:
    result = await llm.decode(decode_cell.context, decode_cell.concurrency)
    await llm.check(result)
