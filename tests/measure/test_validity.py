"""When a cell's numbers mean nothing, and what is said beside those that do; in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.gauges import Edges
from pytest_llmperf.measure.repetition import identical, loops
from pytest_llmperf.measure.summary import Decoded, figures, server_side, summarise
from pytest_llmperf.measure.validity import (
    admitted,
    clock_notices,
    failure,
    invalid,
    is_buffered,
    notices,
)
from pytest_llmperf.model.result import ClientHealth, ServerInfo
from tests.measure.recorded import request, stream

PLAIN = ServerInfo(engine="test", model="m", speculative=False)
SPECULATIVE = ServerInfo(engine="test", model="m", speculative=True)


def decoded(
    *streams: list[StreamRecord],
    t0: float = 2.0,
    t1: float = 8.0,
    seen: Sequence[Gauges] = (),
    edges: Edges | None = None,
    concurrency: int | None = None,
) -> Decoded:
    records = list(streams)
    return summarise(concurrency or len(records), records, count(records), t0, t1, seen, edges)


def counters(**rises: tuple[float, float]) -> Edges:
    """Scrapes at 2 s and 8 s of these counters."""
    before, after = ({n: v[i] for n, v in rises.items()} for i in (0, 1))
    return Edges(Gauges(at=2.0, **before), Gauges(at=8.0, **after))  # type: ignore[arg-type]


def codes(cell: Decoded, server: ServerInfo = PLAIN, max_tokens: int = 50) -> set[str]:
    buffered = is_buffered(cell, server)
    return {notice.code for notice in notices(cell, server, max_tokens, buffered=buffered)}


def why(cell: Decoded, server: ServerInfo = PLAIN, **health: float) -> str | None:
    return invalid(cell, 1000, server, ClientHealth(**health))  # type: ignore[arg-type]


# Values


def test_a_restarting_stream_in_figures() -> None:
    """Period 1.08 s: 0.1 s to the first of 50 tokens at 20 ms; by hand."""
    cell = decoded(stream(), stream(), t0=1.08, t1=1.08 * 6)
    found = figures(cell, buffered=False)
    assert found["total_tok_s"] == pytest.approx(2 * 50 / 1.08)
    assert found["itl_ms"] == pytest.approx(20)
    assert found["per_request_tok_s"] == pytest.approx(50)
    assert found["ttft_ms"] == pytest.approx(100)
    assert found["ttft_n"] == 12
    assert found["completed"] == 10
    assert found["decoding_avg"] == pytest.approx(2 * 0.98 / 1.08)
    assert found["in_flight_avg"] == pytest.approx(2)
    assert found["busy_tok_s"] == pytest.approx(2 * 50 / 0.98)
    assert found["output_tokens"] == 500
    assert sum(found["series"].tokens) == pytest.approx(500, abs=0.1)


def test_c10_throughput_is_what_came_not_a_rate_times_what_was_asked_for() -> None:
    """C10: 2 of 4 run."""
    cell = decoded(stream(chunks=1000), stream(chunks=1000), [], [])
    found = figures(cell, buffered=False)
    assert found["total_tok_s"] == pytest.approx(100)
    assert found["decoding_avg"] == pytest.approx(2)


def test_b4_the_first_chunk_does_not_raise_the_speed() -> None:
    """B4: 20 tokens at once, then one every 20 ms."""
    one = request(0, 0.5, 0.02, 400)
    one.tokens = [20 + i for i in range(400)]
    found = figures(decoded([one], t0=0.0, t1=8.0), buffered=False)
    assert found["itl_ms"] == pytest.approx(20)
    assert found["per_request_tok_s"] == pytest.approx(50)


def test_c2_a_request_without_a_token_has_no_ttft() -> None:
    """C2: never 0, never averaged in."""
    silent = request(5.0, 9.9, 0.02, 0)
    found = figures(decoded(stream(chunks=1000), [silent]), buffered=False)
    assert found["ttft_n"] == 1
    assert found["ttft_ms"] == pytest.approx(100)


@pytest.mark.parametrize("chunks", [0, 1])
def test_c6_too_few_tokens_leave_the_latency_out(chunks: int) -> None:
    found = figures(decoded([request(1.0, 3.0, 0.1, chunks)]), buffered=False)
    assert "itl_ms" not in found
    assert "per_request_tok_s" not in found


def test_b2_no_bin_is_slower_than_all_and_the_fastest_is_not_below_the_mean() -> None:
    found = figures(decoded(stream(), stream(step=0.03)), buffered=False)
    series = found["series"]
    assert max(series.tokens) / series.bin_s >= found["total_tok_s"]
    assert sum(series.tokens) == pytest.approx(found["output_tokens"], abs=1)


def test_steps_come_from_the_servers_counters_at_their_own_stamps() -> None:
    """900 sequence-steps in 6 s made 2,250 tokens: 1,350 of them were accepted drafts."""
    edges = counters(steps=(100, 1000), accepted=(50, 1400))
    found = figures(decoded(stream(chunks=1000), edges=edges), buffered=False)
    assert found["steps_s"] == pytest.approx(150)
    assert found["tokens_per_step"] == pytest.approx(2.5)
    assert found["std_errors"]["steps_s"] == pytest.approx(150 * 0.02 / 6 / 6**0.5, rel=0.01)


def test_a_starved_stream_is_named() -> None:
    """One of four at a twentieth of the speed takes 5 % off the total: within most tolerances."""
    others = [stream(chunks=1000) for _ in range(3)]
    assert "uneven-streams" in codes(decoded(*others, stream(step=0.4, chunks=1000)))
    assert "uneven-streams" not in codes(decoded(*others, stream(step=0.04, chunks=1000)))


def test_reasoning_that_was_not_streamed_is_named() -> None:
    seen = request(0.0, 0.1, 0.02, 100, usage="final", total=1000, end="finished")
    assert "hidden-reasoning" not in codes(decoded([seen]))
    seen.hidden_tokens = 900
    assert "hidden-reasoning" in codes(decoded([seen]))


def test_counters_without_both_edges_are_said_to_be_late() -> None:
    """A server without counters of its steps cannot be late with them."""
    seen = [Gauges(at=4.0, running=1, steps=100.0)]
    assert "metrics-late" in codes(decoded(stream(chunks=1000), seen=seen))
    edges = counters(steps=(100, 1000))
    assert "metrics-late" not in codes(decoded(stream(chunks=1000), seen=seen, edges=edges))
    assert "metrics-late" not in codes(
        decoded(stream(chunks=1000), seen=[Gauges(at=4.0, running=1)])
    )


def test_a_window_of_few_steps_does_not_know_its_error() -> None:
    """Fewer than 8 batches of 5 steps: no error, so nothing can be gated."""
    few = figures(decoded(stream(step=0.44, chunks=1000)), buffered=False)
    many = figures(decoded(stream(step=0.02, chunks=1000)), buffered=False)
    assert "total_tok_s" not in few["std_errors"]
    assert "total_tok_s_ci95" not in few
    assert "total_tok_s" in many["std_errors"]
    assert "itl_ms" in many["std_errors"]


def test_the_interval_covers_the_truth_of_a_noisy_stream() -> None:
    """Steps of 1 to 4 tokens, at random: the 95 % interval nearly always holds 2.5 a step."""
    rng = random.Random(1)
    held = 0
    for _ in range(40):
        tokens, total = [], 0
        for _ in range(500):
            total += rng.randint(1, 4)
            tokens.append(total)
        one = request(0, 0.02, 0.02, 500)
        one.tokens = tokens
        low, high = figures(decoded([one], t0=1, t1=9), buffered=False)["total_tok_s_ci95"]
        held += low <= 2.5 / 0.02 <= high
    assert held >= 34


# Invalid


def test_a_good_cell_is_neither_invalid_nor_remarkable() -> None:
    cell = decoded(stream(chunks=1000), stream(chunks=1000))
    assert failure(cell.records) is None
    assert why(cell) is None
    assert codes(cell) == set()
    assert admitted(cell) is None


def test_any_failed_request_invalidates_with_the_servers_words() -> None:
    broken = request(0, 0.1, 0.02, 10, end="failed", error="EngineCore encountered an issue")
    assert failure([[broken], stream()]) == (
        "1 of 11 requests failed: EngineCore encountered an issue"
    )


def test_a_success_without_a_token_is_a_failure() -> None:
    """B14: 4,096 tokens credited, none seen."""
    empty = request(0, 0.1, 0.02, 0, end="finished")
    assert failure([[empty]]) == "1 of 1 requests failed: finished without a single token"


def test_c15_streams_that_are_not_kept_busy_invalidate() -> None:
    """C15, C9: a stream that waits on the client between its requests is not load."""
    lazy = [request(i, i + 0.05, 0.01, 50, end="finished") for i in range(10)]
    assert "not kept busy: 1.5" in (why(decoded(stream(chunks=1000), lazy)) or "")


def test_waiting_for_a_restarts_first_token_is_being_busy() -> None:
    cell = decoded(stream(ttft=0.3, step=0.02, chunks=50))
    assert why(cell) is None
    assert "restart-gaps" in codes(cell)


def test_a_client_at_its_limit_invalidates() -> None:
    cell = decoded(stream(chunks=1000))
    assert "client bound" in (why(cell, cpu_share=0.97) or "")
    assert "client bound" in (why(cell, loop_lag_p99_ms=60.0) or "")


def test_a_truncated_prompt_invalidates() -> None:
    cell = decoded(stream(chunks=1000, prompt=900))
    assert why(cell) == "prompt truncated: the server read 900 of 1,000 tokens"


def test_no_token_in_the_window_invalidates() -> None:
    assert why(decoded([request(0, 0.1, 0.02, 10)])) == "no token in the window"


def test_a_restart_that_hangs_invalidates() -> None:
    hung = [request(0, 0.1, 0.02, 50, end="finished"), request(1.08, 20, 0.02, 0)]
    assert "had no token after 6.9 s" in (why(decoded(stream(chunks=1000), hung)) or "")


@pytest.mark.parametrize(
    "edges",
    [
        counters(started=(1000.0, 2000.0)),
        counters(generated_tokens=(5000.0, 10.0)),
    ],
)
def test_e10_another_server_process_invalidates(edges: Edges) -> None:
    assert "restarted" in (why(decoded(stream(chunks=1000), edges=edges)) or "")


LOOP = "the cat sat on the mat and said so again. " * 200


def test_d9_repetition_loops_invalidate_under_speculation_and_warn_without() -> None:
    cell = decoded(stream(chunks=1000, text=LOOP[:8192]))
    assert "repetition loops" in (why(cell, SPECULATIVE) or "")
    assert why(cell, PLAIN) is None
    assert "repetition" in codes(cell, PLAIN)


def test_streams_that_take_turns_are_over_capacity() -> None:
    """C10, E14: two slots for four streams; two wait until the others end."""

    def turns(*starts: tuple[float, float]) -> list[StreamRecord]:
        return [request(sent, first, 0.019, 100, end="finished") for sent, first in starts]

    early, late = turns((0, 0.1), (2.0, 4.1)), turns((0, 2.1), (4.0, 6.1))
    rotating = [early, early, late, late]
    assert admitted(decoded(*rotating, t0=2.2, t1=7.8)) == 2


# Notices


def test_e19_preemptions_in_the_window_are_named() -> None:
    cell = decoded(stream(chunks=1000), edges=counters(preemptions=(7, 19)))
    found = [n for n in notices(cell, PLAIN, 1000, buffered=False) if n.code == "preemptions"]
    assert [n.text for n in found] == ["12 preemptions in the window: the KV cache ran out"]


def test_d8_early_stops_are_named_with_their_cost() -> None:
    """D8: 20 tokens and finish_reason "stop" in spite of ignore_eos."""
    cell = decoded(stream(chunks=20, finish="stop"))
    found = {n.code: n.text for n in notices(cell, PLAIN, 4096, buffered=False)}
    assert "ended before 4,096 tokens" in found["early-stops"]
    assert "(stop)" in found["early-stops"]
    assert "% of the window is prefill" in found["early-stops"]


def test_requests_that_use_up_max_tokens_are_no_early_stops() -> None:
    assert "early-stops" not in codes(decoded(stream(chunks=50)), max_tokens=50)
    assert "early-stops" in codes(decoded(stream(chunks=50)), max_tokens=60)


def test_identical_streams_are_named() -> None:
    same = "Once upon a time there was a harbour and nobody knew why it was there at all. "
    assert "identical-streams" in codes(decoded(stream(text=same), stream(text=same)))
    other = same.replace("harbour", "mountain")
    distinct = [request(0, 0.1, 0.02, 500, text=text) for text in (same, other)]
    assert identical(distinct) == 0


def test_a_drift_between_the_halves_is_named() -> None:
    slowing = request(0, 0.1, 0.02, 500)
    rng = random.Random(3)
    at, stamps = 0.1, []
    for _ in range(500):
        at += (0.015 if at < 5 else 0.02) * rng.uniform(0.9, 1.1)
        stamps.append(at)
    slowing.stamps = stamps
    assert "drift" in codes(decoded([slowing]), max_tokens=1000)


def test_other_traffic_on_the_server_is_named() -> None:
    seen = [Gauges(at=t, running=3, waiting=0) for t in (3.0, 4.0)]
    assert "other-traffic" in codes(decoded(stream(chunks=1000), seen=seen))


def test_counters_that_disagree_are_named() -> None:
    """300 tokens came here; the server says 400, or 100."""
    for theirs in (400.0, 100.0):
        cell = decoded(stream(chunks=1000), edges=counters(generated_tokens=(0.0, theirs)))
        assert "counters-disagree" in codes(cell)
    agreeing = decoded(stream(chunks=1000), edges=counters(generated_tokens=(0.0, 301.0)))
    assert "counters-disagree" not in codes(agreeing)
    slow = decoded(stream(step=0.44, chunks=99), edges=counters(generated_tokens=(0.0, 15.0)))
    assert "counters-disagree" not in codes(slow)


def bursts(size: int, every: float, count: int) -> StreamRecord:
    one = request(0, 0, 1, size * count)
    one.stamps = [0.5 + (i // size) * every + (i % size) * 1e-4 for i in range(size * count)]
    return one


def test_c16_a_buffered_stream_has_no_itl_and_no_ttft() -> None:
    """C16: 65 frames a flush. Throughput over a long window still holds."""
    cell = decoded([bursts(65, 1.0, 10)], t0=1.5, t1=7.5)
    for server in (PLAIN, SPECULATIVE):
        assert is_buffered(cell, server)
        assert "buffered" in codes(cell, server, max_tokens=1000)
    found = figures(cell, buffered=True)
    assert {"itl_ms", "ttft_ms", "per_request_tok_s"}.isdisjoint(found)
    assert {"itl_ms", "ttft_ms"}.isdisjoint(found["std_errors"])
    assert found["total_tok_s"] == pytest.approx(65, rel=0.05)


def test_a_chunk_for_each_token_of_a_speculative_step_is_no_buffer() -> None:
    """Three chunks a step, sent together, are the engine's own habit."""
    cell = decoded([bursts(3, 0.03, 300)], t0=1.5, t1=7.5)
    assert not is_buffered(cell, SPECULATIVE)
    assert figures(cell, buffered=False)["itl_ms"] == pytest.approx(10, rel=0.01)


# Loops


def test_loops_need_four_cycles_and_4096_characters() -> None:
    assert loops("abc" * 1366)
    assert not loops("abc" * 1300)
    assert loops("x" * 4096)
    varied = "".join(random.Random(6).choices("abcdefgh ", k=1500))
    assert loops((varied * 6)[-8192:])
    assert not loops((varied * 3)[-8192:])
    assert not loops("".join(random.Random(7).choices("abcdefgh ", k=8192)))
    assert not loops("")


def test_preemptions_are_named_also_where_the_edges_scrapes_were_too_slow() -> None:
    """A count needs no edge: the first and the last scrape inside the window tell it."""
    seen = [Gauges(at=at, preemptions=count) for at, count in ((2.0, 7.0), (3.0, 9.0), (4.0, 19.0))]
    cell = decoded(stream(chunks=1000), seen=seen)
    assert "preemptions" in {n.code for n in notices(cell, PLAIN, 1000, buffered=False)}
    assert server_side(cell).preemptions == 12
    assert server_side(cell).generated_tok_s is None


@pytest.mark.parametrize(("moved_ms", "codes"), [(0.0, []), (None, []), (-1500.0, ["clock-set"])])
def test_a_wall_clock_that_was_set_is_named(moved_ms: float | None, codes: list[str]) -> None:
    found = list(clock_notices(ClientHealth(stamps="kernel", clock_moved_ms=moved_ms)))
    assert [notice.code for notice in found] == codes
    assert all("-1,500.0 ms" in notice.text for notice in found)
