"""vLLM with little KV cache and a chunk every four tokens: ``pytest -m vllm``.

A module of its own, so that there is only one server at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.job import Job, run_job
from tests.support.vllm import VllmServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.usefixtures("vllm_installed"),
]

SHORT = ("--llm-duration", "4", "--llm-settle", "0.5")


@pytest.fixture(scope="module")
def small(vllm_installed: None) -> Iterator[VllmServer]:
    """Little KV cache, and a chunk every four tokens."""
    args = ["--stream-interval", "4", "--num-gpu-blocks-override", "20"]
    with VllmServer(max_model_len=2048, max_num_seqs=8, args=args) as started:
        yield started


@pytest.fixture(scope="module")
def small_job(small: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """19 blocks of 128 tokens for up to four streams of 768."""
    return run_job(tmp_path_factory.mktemp("small"), small.url, "--llm-contexts", "512",
                   "--llm-concurrency", "1,2,4", "--llm-max-tokens", "256", *SHORT)  # fmt: skip


def test_what_does_not_fit_into_the_kv_cache_is_skipped(small_job: Job) -> None:
    assert small_job.code == 0, small_job.text
    measured = small_job.measurement("decode[512-c4]")
    assert measured["status"] == "over_capacity"
    assert "needs 3,072 KV tokens" in measured["reason"]
    assert "the server has 2,432" in measured["reason"]
    assert small_job.cells["decode[512-c4]"]["outcome"] == "OVERCAP"


@pytest.mark.parametrize("streams", [1, 2])
def test_four_tokens_a_chunk_give_the_same_rates(small_job: Job, streams: int) -> None:
    """--stream-interval 4: tok/s is vLLM's own, and ITL is per token: per chunk it would be four
    times as long."""
    measured = small_job.measurement(f"decode[512-c{streams}]")
    assert measured["status"] == "valid", measured["reason"]
    assert measured["token_source"] == "usage"
    assert measured["tokens_per_chunk"] == pytest.approx(4, rel=0.05)
    assert measured["itl_ms"] == pytest.approx(1e3 * streams / measured["busy_tok_s"], rel=0.3)
    theirs = measured["server"]["generated_tok_s"]
    if theirs is not None:
        # four tokens of each stream may be on their way at either edge
        slack = 0.02 + 2 * 4 * streams / (theirs * measured["measured_s"])
        assert measured["total_tok_s"] == pytest.approx(theirs, rel=slack)


def test_a_kv_cache_that_runs_out_is_named(small: VllmServer, tmp_path: Path) -> None:
    """Four streams that start in 16 blocks of the 19 and would end in 28: vLLM preempts."""
    job = run_job(tmp_path, small.url, "--llm-contexts", "384", "--llm-concurrency", "4",
                  "--llm-max-tokens", "512", "--llm-capacity", "try", "--llm-prompts", "distinct",
                  "-k", "decode", "--llm-duration", "8", "--llm-settle", "0.5")  # fmt: skip
    measured = job.measurement("decode[384-c4]")
    assert measured["status"] == "valid", measured["reason"]
    assert measured["server"]["preemptions"] > 0
    assert "preemptions" in {notice["code"] for notice in measured["warnings"]}
    assert "preemptions in the window" in job.text
