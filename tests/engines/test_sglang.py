"""SGLang: budgets and caps by rank, strings that mean nothing, one request aborted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.sglang import SgLang
from pytest_llmperf.model.result import ServerInfo
from tests.engines.fake import describe, make, run

ONE: dict[str, Any] = {
    "model_path": "/m",
    "context_length": None,
    "quantization": "null",
    "speculative_algorithm": None,
    "max_running_requests": 32,
    "status": "ready",
    "max_total_num_tokens": 326_223,
    "max_req_input_len": 163_834,
    "version": "0.5.4",
    "internal_states": [{"model_path": "/m", "context_length": None}],
}
DP8: dict[str, Any] = {
    "page_size": 128,
    "dp_size": 8,
    "max_req_input_len": 133_115,
    "max_total_num_tokens": 270_336,
    "disable_radix_cache": False,
    "disaggregation_mode": "null",
    "internal_states": [
        {
            "memory_usage": {"token_capacity": 270_336},
            "effective_max_running_requests_per_dp": 2,
        }
    ]
    * 8,
}


def info_of(told: dict[str, Any], path: str = "/server_info") -> ServerInfo:
    return describe(SgLang, {path: told})


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_a_single_rank_is_described_by_either_path(path: str) -> None:
    info = info_of(ONE, path)
    assert (info.kv_tokens, info.max_model_len) == (326_223, 163_834)
    assert (info.version, info.model_root) == ("0.5.4", "/m")
    assert info.quantization is None
    assert info.speculative is False
    assert info.prefix_cache is None
    assert any("--enable-metrics" in note for note in info.notes)


def test_e14_the_effective_cap_counts_not_the_option() -> None:
    """The option said 32, the server runs 9."""
    told = ONE | {"internal_states": [{"effective_max_running_requests_per_dp": 9}]}
    assert info_of(told).max_num_seqs == 9
    assert info_of(ONE).max_num_seqs == 32


def test_e15_budget_and_cap_of_eight_ranks_are_summed() -> None:
    info = info_of(DP8)
    assert (info.kv_tokens, info.max_num_seqs) == (8 * 270_336, 16)
    assert info.prefix_cache is True
    assert not any("disaggregated" in note for note in info.notes)


def test_e15_ranks_that_do_not_tell_their_own_have_the_common_budget() -> None:
    info = info_of(DP8 | {"internal_states": []})
    assert info.kv_tokens == 8 * 270_336


def test_e15_host_memory_of_hicache_is_said_to_be_left_out() -> None:
    assert "host cache" in info_of(ONE | {"enable_hierarchical_cache": True}).kv_source


def test_e6_a_rank_below_one_sequence_is_not_believed() -> None:
    info = info_of(ONE | {"context_length": 1_048_576})
    assert info.kv_tokens is None
    assert "326,223" in info.kv_source
    assert "not believed" in info.kv_source


def test_a_disaggregated_worker_is_named() -> None:
    assert "decode worker" in info_of(DP8 | {"disaggregation_mode": "decode"}).notes[-1]


def test_gauges_are_summed_over_data_parallel_ranks_only() -> None:
    """Tensor-parallel ranks of one data-parallel rank all see the same requests."""
    metrics = "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}",model_name="m"}} 3\n'
        for dp in range(2)
        for tp in range(4)
    ) + (
        'sglang:num_queue_reqs{model_name="m"} 2826\n'
        'sglang:token_usage{dp_rank="0"} 0.2\nsglang:token_usage{dp_rank="1"} 0.9\n'
        'sglang:prompt_tokens_total{model_name="m"} 5000\n'
        'sglang:cached_tokens_total{cache_source="device"} 300\n'
        'sglang:cached_tokens_total{cache_source="host"} 100\n'
        'sglang:gen_throughput{model_name="m"} 86.5\n'
    )
    gauges = run(make(SgLang, {"/metrics": metrics}).gauges())
    assert gauges is not None
    assert (gauges.running, gauges.waiting, gauges.kv_use) == (6, 2826, 0.9)
    assert (gauges.prefix_queries, gauges.prefix_hits) == (5000, 400)
    assert gauges.generated_tokens is None


def test_one_request_is_aborted_by_its_id_and_never_all() -> None:
    engine = make(SgLang, {"POST /abort_request": (200, "")})

    async def go() -> None:
        await engine.abort("r1")
        await engine.abort("")

    run(go())
    assert engine.api.posted == [("/abort_request", {"rid": "r1", "abort_all": False})]


def test_tokens_are_counted() -> None:
    engine = make(SgLang, {"POST /tokenize": {"tokens": [1, 2, 3], "count": 3}}, Card("m"))
    assert run(engine.count_tokens("a b c")) == 3
    assert run(make(SgLang, {"POST /tokenize": (422, "{}")}).count_tokens([])) is None


@pytest.mark.parametrize("told", ["[]", "null", "{}", json.dumps({"internal_states": "x"})])
def test_an_answer_of_another_shape_is_no_answer(told: str) -> None:
    info = describe(SgLang, {"/server_info": told})
    assert (info.kv_tokens, info.max_num_seqs, info.max_model_len) == (None, None, None)
