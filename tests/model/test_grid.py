"""Token counts, cells and their ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.model.grid import Cell, Grid, format_tokens, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"), [("8K", 8192), ("128k", 131072), ("8192", 8192), ("0", 0), ("1M", 1048576)]
)
def test_token_counts_are_read(text: str, tokens: int) -> None:
    """K is 1024 tokens, in either case."""
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "K", "-1", "8 K B", "1.5K", "8G", "9" * 12, "٣K"])
def test_nonsense_is_not_a_token_count(text: str) -> None:
    """Everything else is refused, not guessed."""
    with pytest.raises(ValueError, match="token"):
        parse_tokens(text)


@given(st.integers(0, 2**30))
def test_a_written_count_reads_back(tokens: int) -> None:
    """format_tokens and parse_tokens are inverse."""
    assert parse_tokens(format_tokens(tokens)) == tokens


@given(st.integers(0, 2**30), st.integers(1, 4096), st.booleans())
def test_an_id_reads_back(context: int, concurrency: int, decode: bool) -> None:
    """Cell.id and Cell.parse are inverse: the key is built in one way only."""
    cell = Cell("decode", context, concurrency) if decode else Cell("prefill", context)
    assert Cell.parse(cell.id) == cell


@pytest.mark.parametrize(
    "text", ["decode[8K]", "prefill[8K-c1]", "decode[8192-c1]", "decode[8k-c1]"]
)
def test_only_the_one_form_of_an_id_is_read(text: str) -> None:
    """Two spellings of one key would make a baseline miss its cell."""
    with pytest.raises(ValueError, match=r"cell|written"):
        Cell.parse(text)


def test_a_grid_runs_context_by_context_prefill_first() -> None:
    """The prefill of a context warms the cache for its decode cells; load rises."""
    grid = Grid((16, 8), (2, 1), (8, 32))
    eight = ["prefill[8]", "decode[8-c1]", "decode[8-c2]"]
    assert [c.id for c in grid] == [*eight, "decode[16-c1]", "decode[16-c2]", "prefill[32]"]
