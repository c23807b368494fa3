"""Cold prefill speed, one request per context length."""

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.run.fixture import Llm

pytestmark = pytest.mark.asyncio


async def test_prefill(llm: Llm, prefill_cell: Cell) -> None:
    result = await llm.prefill(prefill_cell.context)
    await llm.check(result)
