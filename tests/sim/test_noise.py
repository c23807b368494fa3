"""Noise of starts, moments and texts has the size that was stated, and nothing else moves.

No clock: the scheduler is asked at the times of our choice, and every draw has a seed.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean, median, pstdev

import pytest

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.sim.expected import expected
from pytest_llmperf.sim.noise import Drift, IdleFall, Noise, SlowStart, Start, Throttle
from pytest_llmperf.sim.parameters import Variation
from pytest_llmperf.sim.profile import EngineModel
from pytest_llmperf.sim.scheduler import Scheduler
from pytest_llmperf.sim.values import Band, InBand
from tests.sim.engines import HOST_S, STEP_S, flat, request, small_engine, steps

SEEDS = range(2000)
"""The standard error of a standard deviation is then 1.6 % of it, of a mean 2.2 % of the spread."""
FIVE_PERCENT = (InBand(Band(0), 0.05),)


def logs(noise: partial[Noise], *what: object, now: float = 0.0) -> list[float]:
    """Logarithms of the speed of every seed's start."""
    return [math.log(Start(noise(seed=seed)).speed(*what, now)) for seed in SEEDS]  # type: ignore[arg-type]


def correlate(xs: list[float], ys: list[float]) -> float:
    x, y = fmean(xs), fmean(ys)
    return fmean((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / pstdev(xs) / pstdev(ys)


def test_without_noise_every_start_runs_at_the_speed_of_the_profile() -> None:
    for seed in range(20):
        assert Start(Noise(seed=seed)).speed("decode", 8, 8192, 1e4) == 1.0


def test_noise_of_a_run_is_one_factor_on_everything() -> None:
    noise = partial(Noise, noise_run=0.05)
    decode = logs(noise, "decode", 1, 8192)
    assert abs(fmean(decode)) < 0.005
    assert pstdev(decode) == pytest.approx(0.05, rel=0.06)
    assert logs(noise, "decode", 64, 131072) == logs(noise, "prefill", 1, 8192) == decode
    assert logs(noise, "host", 16, 8192) == decode


def test_noise_by_concurrency_is_shared_by_its_contexts_and_by_no_other() -> None:
    noise = partial(Noise, noise_conc=FIVE_PERCENT)
    four, eight = logs(noise, "decode", 4, 8192), logs(noise, "decode", 8, 8192)
    assert abs(fmean(four)) < 0.005
    assert pstdev(four) == pytest.approx(0.05, rel=0.06)
    assert logs(noise, "decode", 4, 65536) == logs(noise, "host", 4, 8192) == four
    assert abs(correlate(four, eight)) < 0.07
    assert set(logs(noise, "prefill", 1, 8192)) == {0.0}


def test_noise_by_cell_is_of_its_own_in_each_and_for_each_kind_of_work() -> None:
    noise = partial(Noise, noise_cell=FIVE_PERCENT)
    here = logs(noise, "decode", 4, 8192)
    assert abs(fmean(here)) < 0.005
    assert pstdev(here) == pytest.approx(0.05, rel=0.06)
    for work, streams, context in (
        ("decode", 8, 8192), ("decode", 4, 16384), ("host", 4, 8192), ("prefill", 1, 8192),
    ):  # fmt: skip
        other = logs(noise, work, streams, context)
        assert pstdev(other) == pytest.approx(0.05, rel=0.06)
        assert abs(correlate(here, other)) < 0.07


def test_a_cell_stays_one_while_a_stream_starts_anew_and_prompts_are_a_little_short() -> None:
    start = Start(Noise(noise_cell=FIVE_PERCENT))
    assert start.speed("decode", 15, 8184, 0.0) == start.speed("decode", 16, 8192, 0.0)


def test_noise_can_be_larger_at_few_streams() -> None:
    sizes = (InBand(Band(0.7, 1.4), 0.2), InBand(Band(2.8), 0.01))
    noise = partial(Noise, noise_conc=sizes)
    assert pstdev(logs(noise, "decode", 1, 8192)) == pytest.approx(0.2, rel=0.06)
    assert pstdev(logs(noise, "decode", 32, 8192)) == pytest.approx(0.01, rel=0.06)
    assert set(logs(noise, "decode", 2, 8192)) == {0.0}


def test_heavy_tails_are_those_of_t_with_three_degrees_of_freedom() -> None:
    """Its quartile is 0.765 and its standard deviation sqrt(3); beyond three of those are 1.38 %
    (of a normal one 0.27 %). The sample's own deviation says little: the fourth moment is
    infinite."""
    noise = partial(Noise, noise_run=0.05, noise_tails="t3")
    found = [abs(x) / 0.05 for x in logs(noise, "host", 1, 1)]
    assert median(found) == pytest.approx(0.765 / math.sqrt(3), rel=0.06)
    assert fmean(x > 3 for x in found) == pytest.approx(0.0138, abs=0.006)
    assert fmean(x < 1 for x in found) == pytest.approx(0.818, abs=0.02)


def test_the_noise_of_the_engine_has_these_tails_too() -> None:
    engine = small_engine()
    runs = [
        engine.vary(Variation(noise=0.05, noise_tails="t3", seed=seed)).decode_speed
        for seed in SEEDS
    ]
    assert fmean(abs(math.log(x)) > 0.15 for x in runs) == pytest.approx(0.0138, abs=0.006)


def test_a_share_of_starts_is_slow_by_a_fraction() -> None:
    found = logs(partial(Noise, slow_start=SlowStart(0.25, 0.2)), "decode", 1, 8192)
    assert {round(math.exp(x), 12) for x in found} == {0.8, 1.0}
    assert fmean(x < 0 for x in found) == pytest.approx(0.25, abs=0.03)


def test_a_start_drifts_to_its_own_speed_and_stays() -> None:
    noise = partial(Noise, drift=Drift(0.05, 600))
    assert set(logs(noise, "decode", 1, 8192, now=0.0)) == {0.0}
    half, end, late = (logs(noise, "decode", 1, 8192, now=t) for t in (300.0, 600.0, 6000.0))
    assert abs(fmean(end)) < 0.005
    assert pstdev(end) == pytest.approx(0.05, rel=0.06)
    assert half == pytest.approx([x / 2 for x in end])
    assert late == end


def test_a_share_of_slices_of_time_is_throttled() -> None:
    start = Start(Noise(throttle=Throttle(0.2, 0.1, 5.0)), began=1000.0)
    slices = [
        [start.speed("decode", 1, 8192, 1000.0 + 5 * n + within) for within in (0.0, 2.5, 4.9)]
        for n in SEEDS
    ]
    assert all(len(set(speeds)) == 1 for speeds in slices)
    assert {speeds[0] for speeds in slices} == {0.9, 1.0}
    assert fmean(speeds[0] < 1 for speeds in slices) == pytest.approx(0.2, abs=0.03)


def durations(scheduler: Scheduler, now: float) -> list[float]:
    """Of the decode steps of a lone request that comes now."""
    scheduler.submit(request(f"at {now}", prompt=16, max_tokens=101), now)
    return [step.duration_s for _, step in steps(scheduler, now) if step.tokens][1:]


def test_the_engine_is_slower_for_a_while_after_idling() -> None:
    """100 steps of 10 ms; those that start within 0.6 s of the arrival take twice that."""
    scheduler = Scheduler(small_engine(noise=Noise(idle_fall=IdleFall(0.5, 90, 0.6))), began=50.0)
    assert durations(scheduler, 60.0) == pytest.approx([STEP_S] * 100)
    slow = durations(scheduler, 60.0 + 91.2)
    host = HOST_S / 0.5
    count = math.ceil((0.6 - host - STEP_S / 0.5) / (STEP_S / 0.5))
    assert slow == pytest.approx([STEP_S / 0.5] * count + [STEP_S] * (100 - count))
    assert durations(scheduler, 60.0 + 91.2 + 60.0) == pytest.approx([STEP_S] * 100)


def test_a_server_that_waited_for_its_first_request_has_idled() -> None:
    scheduler = Scheduler(small_engine(noise=Noise(idle_fall=IdleFall(0.5, 90, 9))), began=50.0)
    assert durations(scheduler, 141.0) == pytest.approx([2 * STEP_S] * 100)


def noisy(**changes: object) -> EngineModel:
    """An engine of three tokens a step, two of them drafted, with noise."""
    return small_engine(
        kv_tokens=1 << 20,
        max_model_len=8192,
        draft_tokens=7,
        tokens_per_step=flat(3.0),
        noise=Noise(**changes),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("changes", [{"noise_run": 0.05}, {"noise_cell": FIVE_PERCENT}])
def test_expected_values_are_those_of_the_start(changes: dict[str, object]) -> None:
    """By hand: a step of four streams, the burst at the front end, and one cold prompt."""
    engine = noisy(**changes, seed=11)
    speed = partial(Start(engine.noise).speed, now=0.0)
    value = expected(engine, Cell("decode", 160, 4), 5.0)
    decode, host = speed("decode", 4, 160), speed("host", 4, 160)
    assert value.total_tok_s == pytest.approx(3 * 4 * decode / STEP_S, rel=0.01)
    assert value.itl_ms == pytest.approx(1000 * STEP_S / decode / 3, rel=0.01)
    assert value.ttft_ms == pytest.approx(1000 * (HOST_S / host + STEP_S / decode))
    cold = expected(engine, Cell("prefill", 1600))
    host, prefill = speed("host", 1, 1600), speed("prefill", 1, 1600)
    assert cold.ttft_ms == pytest.approx(1000 * (HOST_S / host + 0.16 / prefill))


def yields(spread: float) -> list[float]:
    """Tokens per step of 400 requests of 700 tokens each; every step of its usual duration."""
    scheduler = Scheduler(noisy(acceptance_spread=spread), 1)
    found, now = [], 0.0
    for number in range(400):
        scheduler.submit(request(f"r{number}", prompt=16, max_tokens=701), now)
        done = [(at, step) for at, step in steps(scheduler, now) if step.tokens]
        now = done[-1][0]
        assert {round(step.duration_s, 9) for _, step in done[1:]} == {STEP_S}
        found.append(700 / (len(done) - 1))
    return found


def test_acceptance_wanders_between_requests_and_steps_keep_their_time() -> None:
    """Of 3 tokens a step 2 are accepted ones. The spread adds to what 230 random steps have; the
    value to expect is that of the mean text."""
    alike, wandering = yields(0.0), yields(0.2)
    own = math.sqrt(pstdev(wandering) ** 2 - pstdev(alike) ** 2)
    assert own == pytest.approx(0.2 * 2, rel=0.1)
    assert fmean(wandering) == pytest.approx(3.0, rel=0.03)
    cell = Cell("decode", 160, 4)
    assert expected(noisy(acceptance_spread=0.2), cell, 5.0) == expected(noisy(), cell, 5.0)


def test_starts_of_a_seed_differ_and_each_can_be_had_again() -> None:
    noise = partial(Variation, noise=0.05, noise_run=0.05, seed=7)
    engine = small_engine()

    def speeds(start: int) -> tuple[float, float]:
        varied = engine.vary(noise(start=start))
        return varied.decode_speed, Start(varied.noise).speed("decode", 1, 1, 0.0)

    first, second = speeds(1), speeds(2)
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert speeds(2) == second
    assert engine.vary(partial(noise, start=2)()) == engine.vary(partial(noise, start=2)())
    assert engine.vary(Variation(noise=0.05, seed=8)).decode_speed != second[0]


def test_a_spec_without_these_parameters_draws_what_it_always_did() -> None:
    """Figures of the first version: seeds in results and documents keep their meaning."""
    engine = small_engine(draft_tokens=7, tokens_per_step=flat(3.0)).vary(
        Variation(noise=0.04, seed=3)
    )
    assert (engine.decode_speed, engine.prefill_speed, engine.host_speed) == pytest.approx(
        (0.9685936420137311, 0.9951754581414753, 1.0298618705686766), rel=1e-12
    )
    value = expected(engine, Cell("decode", 160, 1), 5.0, max_tokens=200, seed=3)
    assert value.total_tok_s == pytest.approx(242.00983962127802, rel=1e-9)
