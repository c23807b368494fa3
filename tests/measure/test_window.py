"""Window arithmetic: hand-computed cases, and what must hold for any arrivals."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.measure.window import Curve, bin_events, bin_tokens, measure_window


def steady(
    sent: float, first: float, step: float, chunks: int, per_chunk: int = 1, end: float = inf
) -> Curve:
    """A request of evenly spaced chunks; finished at its last one when ``end`` is given."""
    stamps = [first + i * step for i in range(chunks)]
    return Curve.of(
        sent, stamps, [(i + 1) * per_chunk for i in range(chunks)], end, finished=end < inf
    )


def test_a_slow_step_counts_in_part_at_each_edge() -> None:
    """Steps of 0.44 s and 3 tokens: a 1 s window holds 1 / 0.44 x 3 tokens wherever it starts."""
    stream = [[steady(0, 0.5, 0.44, 20, per_chunk=3)]]
    for t0 in (1.0, 1.1, 1.37, 2.0):
        assert measure_window(stream, t0, t0 + 1).tokens == pytest.approx(3 / 0.44)


def test_the_first_chunk_is_a_jump_at_its_arrival() -> None:
    """B4: 20 tokens in the first chunk were not decoded in the window before it."""
    curve = Curve.of(0, [1.0, 1.1, 1.2], [20, 21, 22])
    assert measure_window([[curve]], 0.0, 1.0).tokens == 0
    assert measure_window([[curve]], 0.0, 1.05).tokens == pytest.approx(20.5)
    assert measure_window([[curve]], 1.0, 1.2).tokens == pytest.approx(22)


def test_the_curve_is_flat_between_requests() -> None:
    first = steady(0, 0.1, 0.1, 5, end=0.5)
    second = steady(0.5, 1.0, 0.1, 5)
    assert measure_window([[first, second]], 0.55, 0.95).tokens == 0
    assert measure_window([[first, second]], 0.45, 1.05).tokens == pytest.approx(0.5 + 1.5)


def test_arrivals_of_one_read_are_one_arrival() -> None:
    """Four chunks in one read grew since the read before, not in no time at all."""
    curve = Curve.of(0, [1.0, 2.0, 2.0, 2.0, 2.0, 3.0], [1, 2, 3, 4, 5, 6])
    assert measure_window([[curve]], 1.0, 1.5).tokens == pytest.approx(1 + 2)
    assert measure_window([[curve]], 0.5, 3.5).chunks == 6
    assert sorted(measure_window([[curve]], 0.5, 3.5).gaps) == [0, 0, 0, 1, 1]


def test_itl_leaves_out_the_first_chunk() -> None:
    """B1, B4: 20 tokens first, then 4 tokens every 80 ms: 20 ms a token."""
    stamps = [1 + 0.08 * i for i in range(40)]
    curve = Curve.of(0, stamps, [20 + 4 * i for i in range(40)])
    window = measure_window([[curve]], 0.0, 5.0)
    assert window.itls == (pytest.approx(0.02),)
    assert not window.itl_few


def test_itl_is_taken_within_the_window_only() -> None:
    """Slow steps before the window are not its business."""
    stamps = [0.0, 1.0, 2.0] + [2.0 + 0.1 * i for i in range(1, 31)]
    curve = Curve.of(-1, stamps, list(range(1, 34)))
    assert measure_window([[curve]], 2.0, 5.0).itls == (pytest.approx(0.1),)


def test_short_requests_stand_in_for_itl_only_when_there_is_no_long_one() -> None:
    long, short = steady(0, 0, 0.1, 30), steady(0, 0, 0.5, 4)
    both = measure_window([[long], [short]], 0, 3)
    assert (both.itls, both.itl_few) == ((pytest.approx(0.1),), False)
    alone = measure_window([[short]], 0, 3)
    assert (alone.itls, alone.itl_few) == ((pytest.approx(0.5),), True)


@pytest.mark.parametrize("tokens", [[], [1], [3]])
def test_c6_one_arrival_or_none_has_no_itl(tokens: list[int]) -> None:
    """C6: nothing to divide is absent, not 0 and not negative."""
    curve = Curve.of(0, [1.0][: len(tokens)], tokens, ended=1.5, finished=True)
    assert measure_window([[curve]], 0, 3).itls == ()


def test_c6_arrivals_without_new_tokens_have_no_itl() -> None:
    curve = Curve.of(0, [1.0, 2.0], [5, 5])
    assert measure_window([[curve]], 0, 3).itls == ()


def test_streams_in_flight_decoding_and_between_requests() -> None:
    """One stream restarts: sent 1.0, first token 1.5; the other decodes throughout."""
    one = [steady(0, 0.1, 0.1, 10, end=1.0), steady(1.0, 1.5, 0.1, 50)]
    other = [steady(0, 0.1, 0.1, 50)]
    window = measure_window([one, other], 0.5, 2.5)
    assert window.in_flight == pytest.approx(2.0)
    assert window.decoding == pytest.approx((0.5 + 1.0 + 2.0) / 2)
    assert window.restarting == pytest.approx(0.25)
    assert window.completed == 1
    assert (window.peak_decoding, window.at_peak) == (2, pytest.approx(0.75))


def test_c4_decoding_ends_with_the_last_token_not_with_the_connection() -> None:
    """C4: last token at 1.0 s, usage chunk at 1.4 s."""
    curve = Curve.of(0, [0.5, 1.0], [1, 2], ended=1.4, finished=True)
    window = measure_window([[curve]], 0.0, 2.0)
    assert window.decoding == pytest.approx(0.25)
    assert window.in_flight == pytest.approx(0.7)


def test_c9_a_stream_that_stops_and_is_not_replaced_lowers_the_average() -> None:
    running, stopped = steady(0, 0, 0.1, 100), steady(0, 0, 0.1, 11, end=1.0)
    window = measure_window([[running], [stopped]], 0.0, 2.0)
    assert window.decoding == pytest.approx(1.5)
    assert window.in_flight == pytest.approx(1.5)


gaps = st.lists(st.floats(0, 2, width=32), min_size=0, max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> list[list[Curve]]:
    """Streams of requests one after the other, with coalesced arrivals and jumps."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        at, requests = draw(st.floats(0, 3)), []
        for _ in range(draw(st.integers(1, 3))):
            sent, stamps, tokens, total = at, [], [], 0
            for gap in draw(gaps):
                at += gap
                total += draw(st.integers(0, 5))
                stamps.append(at)
                tokens.append(total)
            requests.append(Curve.of(sent, stamps, tokens, ended=at, finished=True))
        found.append(requests)
    return found


@given(streams(), st.lists(st.floats(-1, 40), min_size=3, max_size=8, unique=True))
def test_windows_of_a_partition_add_up_to_the_whole(
    found: list[list[Curve]], cuts: list[float]
) -> None:
    cuts = sorted(cuts)
    parts = bin_tokens(found, np.array(cuts))
    assert (parts >= -1e-9).all()
    whole = measure_window(found, cuts[0], cuts[-1]).tokens
    assert parts.sum() == pytest.approx(whole, abs=1e-6)
    events = bin_events(found, np.array([cuts[0], cuts[-1]]))
    assert bin_events(found, np.array(cuts)).sum() == pytest.approx(events.sum(), abs=1e-6)


@given(streams())
def test_a_window_around_everything_holds_every_token(found: list[list[Curve]]) -> None:
    produced = sum(c.tokens[-1] for requests in found for c in requests if c.tokens.size)
    window = measure_window(found, -1.0, 1000.0)
    assert window.tokens == pytest.approx(produced)
    assert window.read_tokens.sum() == pytest.approx(produced)
    assert window.chunks == sum(c.events[-1] for r in found for c in r if c.events.size)
    assert all(itl > 0 for itl in window.itls)
    assert 0 <= window.at_peak <= 1 + 1e-9


@given(streams(), st.integers(0, 11))
def test_cutting_a_window_does_not_change_what_lies_beside_the_cut(
    found: list[list[Curve]], at: int
) -> None:
    """The value just before a moment is the same whatever other moments are asked about."""
    fine = np.arange(0, 12, 0.25)
    alone = bin_tokens(found, np.array([0.0, float(at)])).sum()
    assert bin_tokens(found, fine)[: at * 4].sum() == pytest.approx(alone, abs=1e-6)


def test_a_first_chunk_of_several_tokens_was_made_before_it_came() -> None:
    """Every tenth token is sent: the first ten were made one by one, as the later ones are."""
    stamps = [0.172 + 0.1 * k for k in range(5)]
    curve = Curve.of(0.0, stamps, [10.0 * (k + 1) for k in range(5)])
    at = np.array([0.0, 0.081, 0.0824, 0.1274, 0.172, 0.272])
    pace = 0.01
    expected = [0.0, 0.0, 1.0 + (0.0824 - 0.082) / pace, 1.0 + (0.1274 - 0.082) / pace, 10.0, 20.0]
    assert curve.tokens_before(at) == pytest.approx(expected)


def test_short_requests_of_chunks_of_ten_tokens_are_counted_in_full() -> None:
    """Requests of 100 tokens in phase, 10 ms a token, 80 ms to the first: any window of 5 s counts
    what was made in it within 0.5 %, wherever its edges fall."""
    period, starts = 0.08 + 0.99 + 0.01, np.arange(12) * 1.08
    curves = [
        Curve.of(
            s,
            [s + 0.08 + 0.01 * (10 * k + 9) for k in range(10)],
            [10.0 * (k + 1) for k in range(10)],
            ended=s + period,
            finished=True,
        )
        for s in starts
    ]
    made = np.sort(np.concatenate([s + 0.08 + 0.01 * np.arange(100) for s in starts]))
    for t0 in np.linspace(2.0, 3.08, 50):
        true = np.searchsorted(made, t0 + 5.0) - np.searchsorted(made, t0)
        assert measure_window([curves], t0, t0 + 5.0).tokens == pytest.approx(true, rel=0.005)
