"""vLLM: versions old and new, ranks, and a KV budget that is believed only where it can be."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.vllm import Vllm
from pytest_llmperf.model.result import ServerInfo
from tests.engines.fake import capture, card_of, describe, make, run

V0 = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_cpu_blocks="7281",'
    'num_gpu_blocks="24188",sliding_window="None"} 1.0\n'
)


def info_of(metrics: Any, max_model_len: int | None = None) -> ServerInfo:
    answers = {"/metrics": metrics, "/version": {"version": "0.9.1"}}
    return describe(Vllm, answers, Card("m", max_model_len=max_model_len))


def gauges_of(metrics: str) -> Gauges:
    gauges = run(make(Vllm, {"/metrics": metrics}).gauges())
    assert gauges is not None
    return gauges


def test_a_real_server_is_described() -> None:
    """vLLM 0.32 as recorded: one block of 128 tokens is reserved."""
    info = describe(
        Vllm,
        {
            "/metrics": capture("vllm/get_metrics_after.txt"),
            "/version": capture("vllm/get_version.txt"),
        },
        card_of("vllm/get_v1_models.txt"),
    )
    assert (info.engine, info.version, info.model) == ("vllm", "0.32.0", "tiny")
    assert info.model_root == "models/tiny-llama"
    assert info.max_model_len == 4096
    assert info.kv_tokens == 2_097_152 - 128
    assert "kv_cache_size_tokens" in info.kv_source
    assert info.prefix_cache is True
    assert info.speculative is False
    assert info.started == pytest.approx(1.7960599665e9)
    assert not info.notes


def test_an_overridden_block_count_is_followed() -> None:
    """20 blocks by override; kv_cache_memory_bytes still says the old size."""
    info = info_of(capture("vllm-smallkv-key/nokey_metrics.txt"), 2048)
    assert info.kv_tokens == 20 * 128 - 128


def test_real_gauges_under_load() -> None:
    gauges = gauges_of(capture("vllm/get_metrics_during.txt")[1])
    assert (gauges.running, gauges.waiting) == (8, 4)
    assert gauges.kv_use == pytest.approx(0.000488, rel=0.01)
    assert (gauges.prompt_tokens, gauges.generated_tokens) == (8320, 191)
    assert (gauges.prefix_queries, gauges.prefix_hits) == (8320, 4352)
    assert gauges.preemptions == 0
    assert gauges.steps is None
    assert gauges.accepted is None


def test_e1_num_gpu_blocks_none_is_unknown() -> None:
    info = info_of('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', 4096)
    assert info.kv_tokens is None
    assert "None" in info.kv_source


def test_e1_zero_blocks_are_unknown() -> None:
    assert (
        info_of('vllm:cache_config_info{block_size="16",num_gpu_blocks="0"} 1\n').kv_tokens is None
    )


def test_e2_a_stale_block_size_below_one_sequence_is_not_believed() -> None:
    """A hybrid model: 573 blocks of 528 tokens, reported as of 16."""
    metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="573"} 1.0\n'
    info = info_of(metrics, 131_072)
    assert info.kv_tokens is None
    assert "9,168" in info.kv_source
    assert "131,072" in info.kv_source


def test_e2_blocks_of_a_hybrid_model_are_not_multiplied() -> None:
    metrics = (
        'vllm:cache_config_info{block_size="16",mamba_block_size="528",num_gpu_blocks="24188"} 1\n'
    )
    assert info_of(metrics, 4096).kv_tokens is None


def test_e3_blocks_times_block_size_is_said_to_be_weak() -> None:
    info = info_of(V0, 32_768)
    assert info.kv_tokens == 24_188 * 16 - 16
    assert "weak hint" in info.kv_source
    assert "--llm-kv-tokens" in info.kv_source


def test_e3_the_label_in_tokens_is_preferred_to_blocks() -> None:
    """block_size is the least of several groups here; look-alike labels are not read."""
    metrics = (
        'vllm:cache_config_info{block_size="4",hash_block_size="64",mamba_block_size="None",'
        'user_specified_block_size="256",kv_cache_size_tokens="1000000",num_gpu_blocks="62500"} 1\n'
    )
    info = info_of(metrics, 32_768)
    assert info.kv_tokens == 1_000_000 - 16
    assert "weak" not in info.kv_source


def test_e4_budgets_of_data_parallel_ranks_are_summed() -> None:
    metrics = "".join(
        f'vllm:cache_config_info{{engine="{rank}",kv_cache_size_tokens="100000",'
        'num_gpu_blocks="1000"} 1.0\n'
        for rank in range(4)
    )
    info = info_of(metrics, 8192)
    assert info.kv_tokens == 4 * (100_000 - 100)
    assert "4 ranks" in info.kv_source


def test_e4_a_rank_that_does_not_tell_makes_the_sum_unknown() -> None:
    metrics = (
        'vllm:cache_config_info{engine="0",kv_cache_size_tokens="100000"} 1.0\n'
        'vllm:cache_config_info{engine="1",num_gpu_blocks="1024"} 1.0\n'
    )
    assert info_of(metrics, 8192).kv_tokens is None


def test_e13_one_rank_shown_by_two_front_ends_is_one() -> None:
    metrics = "".join(
        f'vllm:cache_config_info{{engine="0",pid="{pid}",kv_cache_size_tokens="1000"}} 1.0\n'
        for pid in (7, 8)
    )
    assert info_of(metrics).kv_tokens == 1000


def test_e6_a_budget_below_one_sequence_is_unknown() -> None:
    """Context parallelism: the label is one part's, and no multiplier is told."""
    metrics = 'vllm:cache_config_info{kv_cache_size_tokens="200000",num_gpu_blocks="12500"} 1\n'
    info = info_of(metrics, 262_144)
    assert info.kv_tokens is None
    assert "not believed" in info.kv_source


def test_a_budget_of_exactly_one_sequence_holds_one() -> None:
    """The reserved block does not take the sequence that the server itself checked."""
    metrics = 'vllm:cache_config_info{kv_cache_size_tokens="4096",num_gpu_blocks="256"} 1\n'
    assert info_of(metrics, 4096).kv_tokens == 4096


@pytest.mark.parametrize(
    ("metrics", "kv_use"),
    [
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n', 0.25),
        ('vllm:kv_cache_usage_perc{model_name="m"} 0.5\n', 0.5),
        ('vllm:num_requests_running{model_name="m"} 1\n', None),
    ],
)
def test_e7_kv_use_by_its_old_and_new_name_and_never_zero_when_missing(
    metrics: str, kv_use: float | None
) -> None:
    assert gauges_of(metrics).kv_use == kv_use


def test_data_parallel_gauges_are_summed_and_kv_use_is_the_fullest() -> None:
    gauges = gauges_of(
        'vllm:num_requests_running{engine="0",model_name="q"} 5.0\n'
        'vllm:num_requests_running{engine="1",model_name="q"} 3.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="q"} 0.45\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="q"} 0.32\n'
        'vllm:num_preemptions_total{engine="0",model_name="q"} 2.0\n'
        'vllm:num_preemptions_total{engine="1",model_name="q"} 1.0\n'
        'vllm:num_preemptions_created{engine="0",model_name="q"} 1.7592e+09\n'
    )
    assert (gauges.running, gauges.kv_use, gauges.preemptions) == (8, 0.45, 3)


def test_e9_counters_are_told_beside_the_headline_never_as_a_rate() -> None:
    """V0's throughput gauge is not read; the counter is."""
    gauges = gauges_of(
        'vllm:avg_generation_throughput_toks_per_s{model_name="m"} 0.0\n'
        'vllm:generation_tokens_total{model_name="m"} 77\n'
    )
    assert gauges.generated_tokens == 77


def test_e19_preemptions_are_a_counter_of_the_server() -> None:
    assert gauges_of('vllm:num_preemptions_total{model_name="m"} 1065\n').preemptions == 1065


def test_speculative_counters() -> None:
    """Steps are drafts: the look-alikes by position and the draft tokens are not read."""
    metrics = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 100\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 50\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 700\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 250\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 90\n'
    )
    gauges = gauges_of(metrics)
    assert (gauges.steps, gauges.accepted) == (150, 250)
    assert info_of(metrics).speculative is True


def test_flattened_configuration_tells_seats_and_quantization() -> None:
    config = 'scheduler_config_max_num_seqs="128",model_config_quantization="fp8"'
    info = info_of(V0 + f"vllm:vllm_config_info{{{config}}} 1\n")
    assert (info.max_num_seqs, info.quantization) == (128, "fp8")


@pytest.mark.parametrize(
    "answer",
    [
        (200, "<html>502 Bad Gateway</html>"),
        (401, '{"error":"Unauthorized"}'),
        (404, '{"detail":"Not Found"}'),
        (500, "Internal Server Error"),
        (307, ""),
        (200, ""),
    ],
    ids=["html", "401", "404", "500", "307", "empty"],
)
def test_e11_bad_metrics_are_stated_once_and_never_asked_for_again(answer: Any) -> None:
    engine = make(Vllm, {"/metrics": answer, "/version": {"version": "0.9.1"}})

    async def go() -> tuple[ServerInfo, list[Gauges | None]]:
        return await engine.describe(), [await engine.gauges() for _ in range(3)]

    info, gauges = run(go())
    assert gauges == [None, None, None]
    assert [note for note in info.notes if "no metrics" in note] == info.notes
    assert len(info.notes) == 1
    assert info.version == "0.9.1"
    assert info.kv_tokens is None
    assert info.speculative is None
    assert engine.api.asked.count("/metrics") == 1


def test_a_scrape_that_fails_later_is_missed_not_the_end() -> None:
    """The page was there; under load it may fail once."""
    engine = make(Vllm, {"/metrics": [V0, (500, ""), V0]})

    async def go() -> list[Gauges | None]:
        await engine.describe()
        return [await engine.gauges() for _ in range(2)]

    missed, seen = run(go())
    assert missed is None
    assert seen is not None


def test_text_is_counted_as_the_completions_endpoint_does() -> None:
    engine = make(Vllm, {"POST /tokenize": capture("vllm/tokenize.txt")}, Card("tiny"))
    assert run(engine.count_tokens("Hello world, how are you?")) == 7
    assert engine.api.posted == [
        (
            "/tokenize",
            {"model": "tiny", "prompt": "Hello world, how are you?", "add_special_tokens": True},
        )
    ]


def test_messages_are_counted_with_the_template() -> None:
    engine = make(Vllm, {"POST /tokenize": capture("vllm/tokenize_chat.txt")}, Card("tiny"))
    assert run(engine.count_tokens([{"role": "user", "content": "Hello"}])) == 31
    body = engine.api.posted[0][1]
    assert body["add_generation_prompt"] is True
    assert body["add_special_tokens"] is False


@pytest.mark.parametrize("answer", [(404, ""), "{}", "[]", '{"count": "x"}', '{"count": 0}'])
def test_without_a_tokenizer_the_count_is_unknown(answer: Any) -> None:
    assert run(make(Vllm, {"POST /tokenize": answer}).count_tokens("x")) is None
