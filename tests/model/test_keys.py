"""Keys that name a metric in some cells."""

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.keys import applies, check_key, choose_key

CELL = Cell("decode", 8192, 16)


@pytest.mark.parametrize(
    ("key", "is_named"),
    [
        ("ttft_ms", True),
        ("itl_ms", False),
        ("ttft_ms@decode[8K-c16]", True),
        ("ttft_ms@decode[8K-c1]", False),
        ("ttft_ms@decode[8K-c1*]", True),
        ("ttft_ms@decode[*-c16]", True),
        ("ttft_ms@decode[*-c6]", False),
        ("ttft_ms@*", True),
        ("ttft_ms@prefill*", False),
        ("*@decode[8K-*]", True),
        ("*", True),
    ],
)
def test_only_a_star_stands_for_something_else(key: str, is_named: bool) -> None:
    """Brackets are those of cell ids, not sets of characters."""
    assert applies(key, "ttft_ms", CELL) is is_named


def test_a_metric_that_the_phase_has_not_is_not_named() -> None:
    """Prefill tok/s has no limit in a decode cell, whatever the pattern."""
    assert not applies("prefill_tok_s@*", "prefill_tok_s", CELL)


@pytest.mark.parametrize("turn", [1, -1])
def test_the_key_that_says_most_of_the_cell_counts(turn: int) -> None:
    """In whatever order they stand."""
    keys = ["ttft_ms", "ttft_ms@decode[*]", "ttft_ms@decode[8K-*]", "ttft_ms@decode[8K-c1]"]
    assert choose_key(keys[::turn], "ttft_ms", CELL) == "ttft_ms@decode[8K-*]"
    assert choose_key(keys[::turn], "itl_ms", CELL) is None


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("ttft", "no metric 'ttft'"),
        ("*@decode[8K-c1]", "no metric"),
        ("ttft_ms@decode[8k-c16]", "should be written"),
        ("ttft_ms@decode[8k-*]", "fits no cell"),
        ("ttft_ms@decode[8K-c?]", "is not a cell"),
        ("ttft_ms@", "is not a cell"),
    ],
)
def test_what_can_name_no_cell_is_refused(key: str, why: str) -> None:
    """A misspelt limit would hold for ever."""
    with pytest.raises(ValueError, match=why):
        check_key(key)


def test_any_metric_is_a_key_where_it_may_be() -> None:
    assert check_key("*@decode[*-c1]", any_metric=True) == "*@decode[*-c1]"
