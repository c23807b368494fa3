"""The simulated engine's scheduler: admission, batching, preemption, repeatability."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.sim.cost import HostCost
from pytest_llmperf.sim.scheduler import Scheduler, SimRequest, TooLong
from tests.sim.engines import HOST_S, STEP_S, flat, request, small_engine, steps


def submit_all(scheduler: Scheduler, requests: list[SimRequest], now: float = 0.0) -> None:
    for each in requests:
        scheduler.submit(each, now)


def run_one_step(scheduler: Scheduler, now: float = 0.0) -> float:
    """Wait for the front end, then one step; the time it ends."""
    step = scheduler.step(now)
    assert step is not None
    now += step.duration_s
    if step.waiting:
        return run_one_step(scheduler, now)
    return now


def test_a_lone_request_takes_host_prefill_and_steps() -> None:
    """160 tokens at 10,000 tok/s are 16 ms, which gives the first token; 15 steps of 10 ms."""
    scheduler = Scheduler(small_engine())
    scheduler.submit(request("a"), 0.0)
    done = steps(scheduler)
    arrivals = [(end, tokens) for end, step in done for tokens in step.tokens]
    assert arrivals[0][0] == pytest.approx(HOST_S + 0.016)
    assert arrivals[-1][0] == pytest.approx(HOST_S + 0.016 + 15 * STEP_S)
    assert [tokens.total for _, tokens in arrivals] == list(range(1, 17))
    assert [tokens.first for _, tokens in arrivals] == [True] + [False] * 15
    assert [tokens.finish for _, tokens in arrivals] == [None] * 15 + ["length"]
    assert len(scheduler) == 0


def test_a_warm_prompt_computes_its_last_block_only() -> None:
    """Of 160 tokens 144 are cached: the last token must be computed, and blocks have 16."""
    scheduler = Scheduler(small_engine())
    scheduler.submit(request("cold", max_tokens=1), 0.0)
    now = steps(scheduler)[-1][0]
    scheduler.submit(request("warm", max_tokens=1), now)
    done = steps(scheduler, now)
    assert [a.cached_tokens for _, step in done for a in step.admitted] == [144]
    assert done[-1][0] - now == pytest.approx(HOST_S + STEP_S), "a pass, however few tokens"
    assert scheduler.stats.prefix_queries == 320
    assert scheduler.stats.prefix_hits == 144


def test_shared_prompts_admit_more_than_distinct_ones() -> None:
    """40 usable blocks; a prompt of 160 tokens and its next token need 11. Distinct: 3 x 11 = 33,
    a fourth does not fit. Shared: 11 for the first, 9 of those in common with each other one,
    which needs 2 of its own: 11 + 14 x 2 = 39, a sixteenth does not fit."""
    distinct = Scheduler(small_engine())
    submit_all(distinct, [request(f"r{i}", text=i) for i in range(20)])
    run_one_step(distinct)
    assert (distinct.stats.running, distinct.pool.used) == (3, 33)

    shared = Scheduler(small_engine())
    submit_all(shared, [request(f"r{i}") for i in range(20)])
    run_one_step(shared)
    assert (shared.stats.running, shared.pool.used) == (15, 39)


def test_queued_requests_follow_in_order_of_arrival() -> None:
    scheduler = Scheduler(small_engine())
    submit_all(scheduler, [request(f"r{i}", text=i) for i in range(10)])
    done = steps(scheduler)
    assert [a.id for _, step in done for a in step.admitted] == [f"r{i}" for i in range(10)]
    assert scheduler.stats.preemptions == 0
    assert scheduler.stats.generation_tokens == 160


def test_max_num_seqs_holds_the_rest_back() -> None:
    scheduler = Scheduler(small_engine(max_num_seqs=2))
    submit_all(scheduler, [request(f"r{i}", prompt=16) for i in range(5)])
    run_one_step(scheduler)
    assert (scheduler.stats.running, scheduler.stats.waiting) == (2, 3)
    assert max(len(step.tokens) for _, step in steps(scheduler, HOST_S)) == 2


def test_growing_past_memory_preempts_the_last_admitted() -> None:
    """Three prompts of 11 blocks grow to 14 each: 42 of 40. The third goes, and is computed anew
    with what it had generated: each request still gets its 64 tokens once, one of them first."""
    scheduler = Scheduler(small_engine())
    submit_all(scheduler, [request(f"r{i}", max_tokens=64, text=i) for i in range(3)])
    done = steps(scheduler)
    assert [name for _, step in done for name in step.preempted] == ["r2"]
    assert scheduler.stats.preemptions == 1
    assert [(a.id, a.again) for _, step in done for a in step.admitted] == [
        ("r0", False), ("r1", False), ("r2", False), ("r2", True),
    ]  # fmt: skip
    totals: dict[str, list[int]] = defaultdict(list)
    firsts: Counter[str] = Counter()
    for _, step in done:
        for tokens in step.tokens:
            totals[tokens.id].append(tokens.total)
            firsts[tokens.id] += tokens.first
    assert totals == {f"r{i}": list(range(1, 65)) for i in range(3)}
    assert firsts == {f"r{i}": 1 for i in range(3)}
    assert scheduler.pool.used == 0


def test_a_sequence_of_full_length_fits_alone() -> None:
    """Drafts look ahead, but never beyond the model's length, which memory just holds."""
    engine = small_engine(max_model_len=640, draft_tokens=7, tokens_per_step=flat(3.0))
    scheduler = Scheduler(engine)
    scheduler.submit(request("a", prompt=320, max_tokens=320), 0.0)
    steps(scheduler)
    assert scheduler.stats.generation_tokens == 320
    assert scheduler.stats.preemptions == 0


def test_a_request_beyond_the_models_length_is_refused() -> None:
    scheduler = Scheduler(small_engine())
    with pytest.raises(TooLong, match="maximum context length is 512") as refused:
        scheduler.submit(request("a", prompt=500, max_tokens=13), 0.0)
    assert (refused.value.prompt_tokens, refused.value.max_tokens) == (500, 13)
    assert len(scheduler) == 0
    scheduler.submit(request("a", prompt=500, max_tokens=12), 0.0)


def test_an_engine_whose_memory_holds_no_full_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller max_model_len or more kv_tokens"):
        small_engine(max_model_len=641)


def test_a_long_prompt_is_computed_in_chunks_beside_the_decodes() -> None:
    """100 tokens a step: 250 tokens take three, and the running stream has a token in each."""
    engine = small_engine(token_budget=100, kv_tokens=100 * 16)
    scheduler = Scheduler(engine)
    scheduler.submit(request("short", prompt=16, max_tokens=32), 0.0)
    now = run_one_step(scheduler)
    scheduler.submit(request("long", prompt=250, max_tokens=1, text=1), now)
    done = steps(scheduler, now)
    admitted = next(i for i, (_, step) in enumerate(done) if step.admitted)
    names = [[tokens.id for tokens in step.tokens] for _, step in done[admitted : admitted + 3]]
    assert names == [["short"], ["short"], ["short", "long"]]
    assert done[admitted][1].duration_s == pytest.approx(STEP_S + 99 / 10_000)


def test_a_burst_queues_at_the_front_end() -> None:
    """Host work of 0.1 s alone and 0.5 s for nine at once."""
    scheduler = Scheduler(small_engine(host=HostCost((1.0,), (1.0, 9.0), ((0.1, 0.5),))))
    submit_all(scheduler, [request(f"r{i}", prompt=16) for i in range(9)])
    first = scheduler.step(0.0)
    assert first is not None
    assert first.waiting
    assert first.duration_s == pytest.approx(0.5)


@pytest.mark.parametrize("after", [0, 1, 2, 10])
def test_a_cancelled_request_frees_all_it_had(after: int) -> None:
    """At the front end, queued or running: nothing is left, and the others are not disturbed."""
    scheduler = Scheduler(small_engine(max_num_seqs=2))
    submit_all(scheduler, [request(f"r{i}", text=i) for i in range(4)])
    now = 0.0
    for _ in range(after):
        step = scheduler.step(now)
        assert step is not None
        now += step.duration_s
    for i in range(3):
        scheduler.cancel(f"r{i}", now)
    scheduler.cancel("unknown", now)
    done = steps(scheduler, now)
    assert {tokens.id for _, step in done for tokens in step.tokens} == {"r3"}
    assert (len(scheduler), scheduler.pool.used, scheduler.stats.requests) == (0, 0, 4)


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    scheduler = Scheduler(small_engine(prefix_cache=False))
    submit_all(scheduler, [request(f"r{i}") for i in range(4)])
    run_one_step(scheduler)
    assert (scheduler.stats.running, scheduler.pool.used) == (3, 33)
    assert scheduler.pool.cached == 0


def test_a_request_that_may_stop_ends_by_itself() -> None:
    scheduler = Scheduler(small_engine(mean_answer=20.0, kv_tokens=4096 * 16))
    for i in range(40):
        scheduler.submit(SimRequest(f"r{i}", 16, (), 400, ignore_eos=False), 0.0)
    ends = [tokens for _, step in steps(scheduler) for tokens in step.tokens if tokens.finish]
    assert {tokens.finish for tokens in ends} == {"stop"}
    assert 10 < sum(tokens.total for tokens in ends) / 40 < 40


def speculative(seed: int) -> list[int]:
    engine = small_engine(draft_tokens=7, tokens_per_step=flat(3.0), kv_tokens=4096 * 16)
    scheduler = Scheduler(engine, seed)
    submit_all(scheduler, [request(f"r{i}", max_tokens=300, text=i) for i in range(8)])
    done = steps(scheduler)
    stats = scheduler.stats
    assert stats.draft_tokens == 7 * stats.drafts
    assert stats.accepted_tokens / stats.drafts + 1 == pytest.approx(3.0, rel=0.1)
    return [tokens.new for _, step in done for tokens in step.tokens]


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    assert speculative(1) == speculative(1)
    assert speculative(1) != speculative(2)


def test_speculative_steps_yield_one_to_all_drafts_and_one() -> None:
    assert set(speculative(3)) == set(range(1, 9))


def test_average_steps_yield_the_mean_exactly() -> None:
    engine = small_engine(draft_tokens=7, tokens_per_step=flat(2.5))
    scheduler = Scheduler(engine, average=True)
    scheduler.submit(request("a", prompt=16, max_tokens=101), 0.0)
    assert sum(1 for _, step in steps(scheduler) if step.tokens) == 1 + 100 / 2.5


def test_ten_thousand_requests_leave_nothing_behind() -> None:
    """After 1,000 requests on prompts of their own the next 9,000 take no more memory."""
    scheduler = Scheduler(small_engine())

    def serve(start: int, end: int) -> None:
        for i in range(start, end):
            scheduler.submit(request(f"r{i}", max_tokens=2, text=i), float(i))
            steps(scheduler, float(i))

    tracemalloc.start()
    try:
        serve(0, 1000)
        before = tracemalloc.get_traced_memory()[0]
        serve(1000, 10_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000
    assert scheduler.stats.requests == 10_000
    assert (len(scheduler), scheduler.pool.used) == (0, 0)
    assert scheduler.pool.cached <= scheduler.pool.usable


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "cancel", "step"]),
            st.integers(0, 5),
            st.integers(1, 300),
            st.integers(1, 100),
        ),
        max_size=60,
    )
)
def test_any_sequence_of_events_ends_with_all_memory_free(
    events: list[tuple[str, int, int, int]],
) -> None:
    """Whatever comes, goes and runs out: every request not cancelled gets all its tokens."""
    engine = small_engine(draft_tokens=3, tokens_per_step=flat(2.0), token_budget=128)
    scheduler = Scheduler(engine)
    now, wanted = 0.0, {}
    got: Counter[str] = Counter()

    def take() -> None:
        nonlocal now
        step = scheduler.step(now)
        if step is not None:
            now += step.duration_s
            for tokens in step.tokens:
                got[tokens.id] += tokens.new
                assert got[tokens.id] == tokens.total

    for i, (what, text, prompt, output) in enumerate(events):
        if what == "submit":
            scheduler.submit(request(f"r{i}", prompt, output, text), now)
            wanted[f"r{i}"] = output
        elif what == "cancel" and wanted:
            name = list(wanted)[text % len(wanted)]
            scheduler.cancel(name, now)
            if got[name] < wanted[name]:
                del wanted[name], got[name]
        else:
            take()
        assert 0 <= scheduler.pool.used <= scheduler.pool.usable
    for _ in range(20_000):
        if not len(scheduler):
            break
        take()
    assert dict(got) == wanted
    assert scheduler.pool.used == 0
