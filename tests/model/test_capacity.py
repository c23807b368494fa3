"""What fits: the published reports to the cell, three modes, and limits that are not believed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.model.capacity import fits, prefill_tokens
from pytest_llmperf.model.choices import CapacityMode
from pytest_llmperf.model.grid import Cell, parse_tokens
from pytest_llmperf.model.result import Capacity, ServerInfo

K = 1024
REPORTS = Path(__file__).parent.parent / "data" / "reports"


def server(**known: Any) -> ServerInfo:
    return ServerInfo(engine="vllm", model="m", **known)


def cell(context: int, concurrency: int) -> Cell:
    return Cell("decode", context, concurrency)


def why(found: Capacity | None) -> str:
    assert found is not None
    return found.reason


@pytest.mark.parametrize(
    ("profile", "budgets", "limit", "over"),
    [
        ("rtxpro6k_x4", (1_310_720, 1_572_863), 524_288, 22),
        ("h200nvl_x2", (1_572_864, 2_088_959), 262_144, 15),
    ],
)
def test_the_cells_over_capacity_are_those_of_the_report(
    profile: str, budgets: tuple[int, int], limit: int, over: int
) -> None:
    """At both ends of the range of budgets, every row of the table, prefill rows included."""
    with (REPORTS / f"{profile}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for budget in budgets:
        info = server(kv_tokens=budget, max_model_len=limit)
        left_out = set()
        for row in rows:
            tokens = parse_tokens(row["context"])
            point = Cell(row["phase"], tokens, int(row["concurrency"]))  # type: ignore[arg-type]
            if fits(point, "reserved", info, 4096):
                left_out.add(point.id)
            assert (point.id in left_out) == (row["status"] == "over_capacity"), point.id
        assert len(left_out) == over


@pytest.mark.parametrize(
    ("profile_limit", "context", "tokens"),
    [
        (524_288, 512 * K, 524_223),
        (524_288, 507 * K, 519_168),
        (262_144, 256 * K, 262_079),
        (262_144, 262_143, 262_143),
        (262_144, 512 * K, None),
        (1000, 1030, 935),
        (1000, 1031, None),
        (60, 60, None),
        (None, 512 * K, 512 * K),
    ],
)
def test_a_prefill_just_above_the_models_limit_is_trimmed(
    profile_limit: int | None, context: int, tokens: int | None
) -> None:
    assert prefill_tokens(context, profile_limit) == tokens


@given(st.integers(0, 2**21), st.none() | st.integers(1, 2**21))
def test_a_prefill_never_asks_for_more_than_the_model_takes(
    context: int, limit: int | None
) -> None:
    tokens = prefill_tokens(context, limit)
    if tokens is not None:
        assert 0 <= tokens <= context
        assert limit is None or tokens + 1 <= limit
    else:
        assert limit is not None
        assert context >= limit


def test_a_prefill_far_above_the_limit_says_both_numbers() -> None:
    found = fits(Cell("prefill", 512 * K), "try", server(max_model_len=262_144), 4096)
    assert "524,288" in why(found)
    assert "262,144" in why(found)


def test_reserved_says_both_numbers() -> None:
    found = fits(cell(8 * K, 128), "reserved", server(kv_tokens=1_441_792), 4096)
    assert found is not None
    assert (found.needs, found.budget) == (1_572_864, 1_441_792)
    assert "1,572,864" in found.reason
    assert "1,441,792" in found.reason
    assert "reserved if nothing is shared" in found.reason


@pytest.mark.parametrize(
    ("mode", "prompts", "needs"),
    [
        ("reserved", "shared", 16 * (128 * K + 4096)),
        ("shared", "shared", 128 * K + 16 * 4096),
        ("shared", "distinct", 16 * (128 * K + 4096)),
        ("try", "shared", None),
    ],
)
def test_the_modes_differ_in_what_a_shared_prompt_costs(
    mode: CapacityMode, prompts: Any, needs: int | None
) -> None:
    found = fits(cell(128 * K, 16), mode, server(kv_tokens=131_072), 4096, prompts=prompts)
    assert (found and found.needs) == needs


def test_shared_fits_where_reserved_does_not() -> None:
    info = server(kv_tokens=300_000)
    assert fits(cell(128 * K, 16), "reserved", info, 4096) is not None
    assert fits(cell(128 * K, 16), "shared", info, 4096) is None


def test_more_streams_than_seats_says_how_many_are_admitted() -> None:
    found = fits(cell(512, 8), "reserved", server(max_num_seqs=4), 256)
    assert why(found) == "the server admits 4 of 8"
    assert fits(cell(512, 4), "reserved", server(max_num_seqs=4), 256) is None


def test_trying_leaves_seats_and_memory_to_the_ramp_but_not_the_models_limit() -> None:
    info = server(max_num_seqs=4, kv_tokens=8192, max_model_len=8192)
    assert fits(cell(1024, 64), "try", info, 4096) is None
    assert "8,192" in why(fits(cell(8192, 1), "try", info, 4096))


def test_prompt_and_output_must_fit_the_model_together() -> None:
    info = server(max_model_len=524_288)
    assert fits(cell(507 * K, 1), "reserved", info, 4096) is None
    found = fits(cell(512 * K, 1), "reserved", info, 4096)
    assert "524,288 + 4,096 output tokens exceed the model's limit of 524,288" in why(found)


def test_an_unknown_budget_leaves_it_to_the_ramp() -> None:
    assert fits(cell(128 * K, 128), "reserved", server(), 4096) is None


def test_e6_a_reported_budget_below_one_sequence_is_not_believed() -> None:
    info = server(kv_tokens=100_000, max_model_len=131_072)
    assert fits(cell(8 * K, 128), "reserved", info, 4096) is None


def test_the_users_budget_is_believed_whatever_it_is() -> None:
    info = server(kv_tokens=10**9, max_model_len=131_072)
    found = fits(cell(8 * K, 16), "reserved", info, 4096, kv_tokens=100_000)
    assert found is not None
    assert found.budget == 100_000


@pytest.mark.parametrize("mode", ["reserved", "shared", "try"])
def test_e20_cells_of_context_0_are_not_left_out_for_their_memory(mode: CapacityMode) -> None:
    info = server(kv_tokens=16_384, max_model_len=8192)
    assert fits(cell(0, 128), mode, info, 4096) is None
    assert fits(Cell("prefill", 0), mode, info, 4096) is None


def test_e14_a_cap_on_requests_is_a_limit_of_its_own() -> None:
    info = server(max_num_seqs=9, kv_tokens=10**9)
    assert "admits 9 of 16" in why(fits(cell(8 * K, 16), "reserved", info, 4096))


@given(
    st.integers(1, 2**20),
    st.integers(1, 512),
    st.integers(1, 2**24),
    st.integers(1, 512),
    st.integers(1, 8192),
)
def test_what_fits_reserved_fits_shared_and_more_streams_never_fit_better(
    context: int, concurrency: int, budget: int, seats: int, max_tokens: int
) -> None:
    info = server(kv_tokens=budget, max_num_seqs=seats)
    if fits(cell(context, concurrency), "reserved", info, max_tokens) is None:
        assert fits(cell(context, concurrency), "shared", info, max_tokens) is None
        assert fits(cell(context, concurrency), "try", info, max_tokens) is None
    else:
        assert fits(cell(context, concurrency + 1), "reserved", info, max_tokens) is not None
