"""What counts as a token, and how the result says so."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmperf.measure.counting import count
from tests.measure.recorded import request


def test_cumulative_usage_is_taken_as_it_is() -> None:
    """B3, B11: several tokens a chunk, counted by the server and never summed up."""
    counted = count([[request(0, 0.1, 0.1, 10, per_chunk=3)]])
    assert counted.source == "usage"
    assert list(counted.streams[0][0].tokens) == [3 * i for i in range(1, 11)]


def test_final_usage_scales_the_chunks_of_its_own_request() -> None:
    """And a request that was cut off gets the mean of those that told their total."""
    told = request(0, 0.1, 0.1, 10, usage="final", total=25, end="finished")
    cut = request(1.5, 1.6, 0.1, 4, usage="final")
    counted = count([[told, cut]])
    assert counted.source == "estimated"
    assert counted.tokens_per_chunk == pytest.approx(2.5)
    assert list(counted.streams[0][0].tokens) == pytest.approx([2.5 * i for i in range(1, 11)])
    assert list(counted.streams[0][1].tokens) == pytest.approx([2.5, 5, 7.5, 10])


def test_an_earlier_cell_helps_where_no_request_came_to_its_end() -> None:
    cut = [[request(0, 0.1, 0.1, 4, usage="final")]]
    assert count(cut).source == "chunks"
    assert list(count(cut).streams[0][0].tokens) == [1, 2, 3, 4]
    helped = count(cut, tokens_per_chunk=2.0)
    assert helped.source == "estimated"
    assert list(helped.streams[0][0].tokens) == [2, 4, 6, 8]


def test_b9_without_usage_chunks_are_counted_and_named_so() -> None:
    counted = count([[request(0, 0.1, 0.1, 4, usage=None)]])
    assert (counted.source, counted.tokens_per_chunk) == ("chunks", None)


def test_one_request_without_usage_makes_the_whole_cell_an_estimate() -> None:
    """Tokens of two kinds are not added up silently."""
    mixed = [[request(0, 0.1, 0.1, 4)], [request(0, 0.1, 0.1, 4, usage=None)]]
    assert count(mixed).source == "chunks"


def test_a_request_that_never_left_has_no_curve() -> None:
    lost = request(0, 0.1, 0.1, 4)
    lost.sent_at = None
    assert count([[lost]]).streams == [[]]


def test_a_request_that_has_just_begun_goes_at_the_others_pace() -> None:
    """Its first ten tokens were made before they came, though no second chunk shows how fast."""
    begun = request(2.0, 2.1, 0.1, 1, per_chunk=10)
    curve = count([[request(0.0, 0.1, 0.1, 9, per_chunk=10), begun]]).streams[0][1]
    assert curve.tokens_before(np.array([2.0, 2.05, 2.1])) == pytest.approx([0.0, 5.0, 10.0])
