"""What a right client must see, without a clock: both shipped profiles, hand-computed cells,
variations."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import pstdev

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.sim.calibrate import calibrate
from pytest_llmperf.sim.expected import Fit, expected, residuals
from pytest_llmperf.sim.parameters import Variation
from pytest_llmperf.sim.profile import (
    DecodeRow,
    EngineModel,
    PrefillRow,
    ProfileTables,
)
from pytest_llmperf.sim.scheduler import TooLong
from pytest_llmperf.sim.values import Band, InBand
from tests.sim.engines import HOST_S, STEP_S, flat, small_engine

PROFILES = ["rtxpro6k_x4", "h200nvl_x2"]
LIMITS = {"total_tok_s": 0.02, "itl_ms": 0.07, "ttft_ms": 0.10, "prefill_tok_s": 0.10}


@cache
def tables(profile: str) -> ProfileTables:
    path: Path = shipped("baselines") / f"{profile}.yaml"
    return ProfileTables.from_baseline(load(path))


@cache
def engine(profile: str) -> EngineModel:
    return calibrate(tables(profile))


@cache
def fit(profile: str) -> Fit:
    return residuals(tables(profile))


# The shipped profiles


@pytest.mark.parametrize(("profile", "figures"), [("rtxpro6k_x4", 118), ("h200nvl_x2", 113)])
def test_every_figure_of_the_reports_is_met(profile: str, figures: int) -> None:
    """Total tok/s within 2 %, ITL within 7 %, TTFT and prefill rows within 10 %."""
    found = fit(profile).residuals
    assert len(found) == figures
    assert [r for r in found if not abs(r.off) <= LIMITS[r.metric]] == []


@pytest.mark.parametrize(("profile", "number"), [("rtxpro6k_x4", 22), ("h200nvl_x2", 15)])
def test_exactly_the_reports_cells_are_over_capacity(profile: str, number: int) -> None:
    assert len(fit(profile).over_capacity) == number
    assert fit(profile).over_capacity == tables(profile).over_capacity


@pytest.mark.parametrize(
    ("profile", "length", "kv_tokens", "drafts"),
    [("rtxpro6k_x4", 524288, 1441792, 7), ("h200nvl_x2", 262144, 1830912, 0)],
)
def test_an_engine_has_its_profiles_limits(
    profile: str, length: int, kv_tokens: int, drafts: int
) -> None:
    model = engine(profile)
    assert (model.max_model_len, model.kv_tokens, model.draft_tokens) == (
        length,
        kv_tokens,
        drafts,
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_corrections_name_cells_of_the_profile_and_what_they_changed(profile: str) -> None:
    corrections = fit(profile).corrections
    assert {(c.cell.context, c.cell.concurrency) for c in corrections} <= set(
        tables(profile).decode
    )
    assert all(c.model != c.corrected for c in corrections)


def test_a_prefill_row_above_the_models_length_is_trimmed() -> None:
    value = expected(engine("rtxpro6k_x4"), Cell("prefill", 524288))
    assert value.prefill_tok_s is not None
    assert value.ttft_ms / 1000 * value.prefill_tok_s == pytest.approx(524288 - 65)


def test_speculative_totals_factor_into_steps_and_tokens_per_step() -> None:
    value = expected(engine("rtxpro6k_x4"), Cell("decode", 8192, 16), 10.0)
    assert value.steps_s is not None
    assert value.tokens_per_step is not None
    assert value.steps_s * value.tokens_per_step == pytest.approx(value.total_tok_s, rel=0.02)
    plain = expected(engine("h200nvl_x2"), Cell("decode", 8192, 16), 10.0)
    assert (plain.steps_s, plain.tokens_per_step) == (None, None)


@pytest.mark.parametrize("streams", [16, 64])
def test_a_random_run_of_ten_seconds_is_near_the_expected_values(streams: int) -> None:
    cell = Cell("decode", 8192, streams)
    mean = expected(engine("rtxpro6k_x4"), cell, 10.0)
    run = expected(engine("rtxpro6k_x4"), cell, 10.0, seed=1)
    assert run == expected(engine("rtxpro6k_x4"), cell, 10.0, seed=1)
    assert run != expected(engine("rtxpro6k_x4"), cell, 10.0, seed=2)
    assert run.total_tok_s == pytest.approx(mean.total_tok_s, rel=0.03)
    assert run.itl_ms == pytest.approx(mean.itl_ms, rel=0.05)
    assert run.ttft_ms == pytest.approx(mean.ttft_ms, rel=0.03)


# By hand


def roomy(**changes: object) -> EngineModel:
    return small_engine(**({"kv_tokens": 1 << 20, "max_model_len": 8192} | changes))


def test_steady_streams_have_a_token_per_step() -> None:
    value = expected(roomy(), Cell("decode", 160, 4), 10.0)
    assert value.total_tok_s == pytest.approx(4 / STEP_S)
    assert value.itl_ms == pytest.approx(1000 * STEP_S)
    assert value.per_request_tok_s == pytest.approx(1 / STEP_S)
    assert value.ttft_ms == pytest.approx(1000 * (HOST_S + STEP_S))
    assert value.completed == 0


def test_restart_gaps_cost_total_throughput_but_not_itl() -> None:
    """50 tokens take 0.49 s after the first, which takes 0.11 s: 50 tokens each 0.6 s."""
    value = expected(roomy(), Cell("decode", 160, 2), 12.0, max_tokens=50)
    assert value.total_tok_s == pytest.approx(2 * 50 / 0.6, rel=0.005)
    assert value.itl_ms == pytest.approx(1000 * STEP_S)
    assert value.completed == pytest.approx(2 * 12.0 / 0.6, abs=2)


def test_distinct_prompts_preempt_where_shared_ones_fit() -> None:
    """40 blocks: three prompts of 10 blocks grow to 14 each; shared they hold 9 in common."""
    cell = Cell("decode", 160, 3)
    assert expected(small_engine(), cell, 2.0, max_tokens=64).preemptions == 0
    assert expected(small_engine(), cell, 2.0, max_tokens=64, shared=False).preemptions > 0


def test_a_cell_beyond_the_models_length_is_refused() -> None:
    with pytest.raises(TooLong):
        expected(small_engine(), Cell("decode", 500, 1), max_tokens=100)


# Variations


def test_speed_moves_everything() -> None:
    base = engine("rtxpro6k_x4")
    slow = base.vary(Variation(speed=0.85))
    for cell in (Cell("decode", 8192, 16), Cell("decode", 131072, 2)):
        before, after = (expected(e, cell, 5.0) for e in (base, slow))
        assert before.total_tok_s is not None
        assert after.total_tok_s == pytest.approx(0.85 * before.total_tok_s, rel=0.01)
        assert after.ttft_ms == pytest.approx(before.ttft_ms / 0.85, rel=0.01)
    cell = Cell("prefill", 32768)
    before, after = expected(base, cell), expected(slow, cell)
    assert before.prefill_tok_s is not None
    assert after.prefill_tok_s == pytest.approx(0.85 * before.prefill_tok_s, rel=0.001)


def test_some_contexts_or_concurrencies_can_be_slow() -> None:
    base = engine("h200nvl_x2")
    slow = base.vary(
        Variation(
            slow_ctx=(InBand(Band(12_000, 24_000), 0.5),), slow_conc=(InBand(Band(6, 12), 0.8),)
        )
    )
    for context, streams, factor in (
        (8192, 4, 1.0), (16384, 4, 0.5), (8192, 8, 0.8), (16384, 8, 0.4),
    ):  # fmt: skip
        cell = Cell("decode", context, streams)
        before, after = (expected(e, cell, 5.0) for e in (base, slow))
        assert before.total_tok_s is not None
        assert after.total_tok_s == pytest.approx(factor * before.total_tok_s, rel=0.01)


def test_lower_acceptance_means_fewer_tokens_per_step_not_slower_steps() -> None:
    base = engine("rtxpro6k_x4")
    worse = base.vary(Variation(acceptance=0.5))
    before, after = (expected(e, Cell("decode", 8192, 8), 10.0) for e in (base, worse))
    assert before.tokens_per_step is not None
    assert before.steps_s is not None
    assert after.tokens_per_step == pytest.approx(1 + 0.5 * (before.tokens_per_step - 1), rel=0.02)
    assert after.steps_s == pytest.approx(before.steps_s, rel=0.01)


def test_noise_between_runs_has_the_size_asked_for() -> None:
    """Over 400 runs; the standard error of a standard deviation is then 3.5 % of it."""
    base = small_engine()
    runs = [base.vary(Variation(noise=0.04, seed=seed)).decode_s(1, 100) for seed in range(400)]
    assert pstdev(runs) / STEP_S == pytest.approx(0.04, rel=0.15)
    assert base.vary(Variation(noise=0.04, seed=3)) == base.vary(Variation(noise=0.04, seed=3))


def test_a_cache_below_one_sequence_lowers_the_models_length() -> None:
    """63 blocks of 16, one of which is the engine's own."""
    small = engine("rtxpro6k_x4").vary(Variation(kv_tokens=1010))
    assert (small.kv_tokens, small.max_model_len) == (1010, 62 * 16)


# Other profiles


def sparse(**changes: object) -> ProfileTables:
    values: dict[str, object] = {
        "name": "home",
        "decode": {(2048, 1): DecodeRow(50.0, 20.0, 100.0)},
        "prefill": {2048: PrefillRow(1000.0, 2048.0)},
        "over_capacity": frozenset(),
        "max_tokens": 256,
    }
    return ProfileTables(**(values | changes))  # type: ignore[arg-type]


def test_one_cell_makes_an_engine() -> None:
    model = calibrate(sparse())
    assert (model.max_model_len, model.draft_tokens) == (2048 + 256 + 1024, 0)
    value = expected(model, Cell("decode", 2048, 1), 10.0, max_tokens=256)
    assert value.itl_ms == pytest.approx(20.0, rel=0.05)
    assert expected(model, Cell("decode", 2048, 4), 5.0, max_tokens=256).preemptions == 0


def test_a_profile_may_have_context_zero() -> None:
    rows = {(0, 1): DecodeRow(60.0, 16.7, 50.0), (2048, 1): DecodeRow(50.0, 20.0, 100.0)}
    value = expected(calibrate(sparse(decode=rows)), Cell("decode", 8, 1), 10.0, max_tokens=256)
    assert value.itl_ms is not None
    assert 16.0 < value.itl_ms < 20.0


def test_step_counters_of_a_profile_are_kept() -> None:
    row = DecodeRow(200.0, 5.0, 100.0, tokens_per_step=4.0)
    model = calibrate(sparse(decode={(2048, 1): row}, draft_tokens=7, max_tokens=4096))
    value = expected(model, Cell("decode", 2048, 1), 10.0)
    assert value.tokens_per_step == pytest.approx(4.0, rel=0.01)
    assert value.total_tok_s == pytest.approx(200.0, rel=0.02)


def test_a_profile_without_decode_cells_cannot_be_simulated() -> None:
    with pytest.raises(ConfigError, match=r"home cannot be simulated.*measure them"):
        calibrate(sparse(decode={}))


def test_spread_between_texts_leaves_half_the_requests_faster() -> None:
    """ITL is 10 % less in one of two streams and 10 % more in the other."""
    model = roomy(draft_tokens=7, tokens_per_step=flat(3.0), text_spread=flat(1.1))
    value = expected(model, Cell("decode", 160, 2), 5.0)
    rates = [3.0 / STEP_S / f for f in (0.9, 1.1)]
    assert value.total_tok_s == pytest.approx(sum(rates), rel=0.005)
