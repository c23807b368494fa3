"""Cold prefill speed, one request per context length."""

import pytest

from pytest_llmperf.fixture import Llm
from pytest_llmperf.grid import Cell

pytestmark = pytest.mark.asyncio


async def test_prefill(llm: Llm, prefill_cell: Cell) -> None:
    result = await llm.prefill(prefill_cell.context)
    await llm.check(result)
