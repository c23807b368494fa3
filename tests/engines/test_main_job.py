"""The main job against the real llama.cpp server: measure, store, measure again, be judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.job import Job, run_job
from tests.support.llamacpp import LlamaServer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("llamacpp_installed")]

LOOSE = [
    part
    for metric in ("total_tok_s", "itl_ms", "ttft_ms", "prefill_tok_s")
    for part in ("--llm-tolerance", f"{metric}=0.9")
]


@pytest.fixture(scope="module")
def server(llamacpp_installed: None) -> Iterator[LlamaServer]:
    """Four slots that split 16K."""
    with LlamaServer(n_ctx=16_384, slots=4) as started:
        yield started


def run(tmp_path: Path, url: str, *args: str) -> Job:
    """A run with answers short enough for several to end in a window, also on a slow machine."""
    answers = () if "--llm-max-tokens" in args else ("--llm-max-tokens", "16")
    return run_job(tmp_path, url, *answers, "--llm-duration", "3", "--llm-settle", "0.5", *args)


def test_a_matrix_is_measured_stored_and_judged(tmp_path: Path, server: LlamaServer) -> None:
    """--update-baselines creates the profile; the next run is judged against it."""
    grid = ["--llm-contexts", "512,1K", "--llm-concurrency", "1,2,4", "--hardware", "laptop"]
    job = run(tmp_path, server.url, *grid, "--update-baselines")
    assert job.code == 0, job.text
    assert {cell["outcome"] for cell in job.cells.values()} == {"UPDATED"}
    assert len(job.cells) == 8
    assert (tmp_path / "baselines/laptop.yaml").read_text().startswith("schema: 1\n")

    for name, cell in job.cells.items():
        measured = cell["measurement"]
        # a tokenizer with the template applied: the stated exactness is 8 tokens or 0.1 %
        assert abs(measured["prompt_tokens"] - measured["context"]) <= 8, name
        if measured["phase"] == "decode":
            assert measured["in_flight_avg"] == pytest.approx(measured["concurrency"], rel=0.02)
            assert measured["total_tok_s"] > 1, name
            assert 0 < measured["itl_ms"] < 3000, name
            assert measured["ttft_warm"] is True, name
    for context in ("512", "1K"):
        cold = job.measurement(f"prefill[{context}]")["ttft_ms"]
        warm = job.measurement(f"decode[{context}-c1]")["ttft_ms"]
        assert warm < cold / 2, "the prefix cache makes the first token faster"

    job = run(tmp_path, server.url, *grid, *LOOSE)
    judged = [c for cell in job.cells.values() for c in cell["comparisons"] if c["gated"]]
    assert len(judged) >= 8, job.text
    outcomes = {cell["outcome"] for cell in job.cells.values()}
    assert outcomes <= {"PASS", "IMPROVED", "REGRESSED"}


def test_more_streams_than_slots_are_over_capacity(tmp_path: Path, server: LlamaServer) -> None:
    """Eight streams on four slots are never a number for eight."""
    job = run(tmp_path, server.url, "--llm-contexts", "512,2K", "--llm-concurrency", "8",
              "-k", "decode")  # fmt: skip
    assert job.code == 1, job.text  # nothing was measured
    assert len(job.cells) == 2
    for cell in job.cells.values():
        assert cell["measurement"]["status"] == "over_capacity"
        assert "admits 4 of 8" in cell["measurement"]["reason"]
        assert cell["measurement"]["total_tok_s"] is None


def test_without_a_limit_known_the_ramp_finds_it(tmp_path: Path, server: LlamaServer) -> None:
    """--llm-capacity try sends all eight, sees four of them wait, and says so."""
    job = run(tmp_path, server.url, "--llm-contexts", "512", "--llm-concurrency", "8",
              "-k", "decode", "--llm-capacity", "try")  # fmt: skip
    assert job.code == 1, job.text
    measured = job.measurement("decode[512-c8]")
    assert measured["status"] == "over_capacity"
    assert "4 of 8" in measured["reason"]
    assert measured["total_tok_s"] is None


def test_a_shared_pool_that_runs_out_is_over_capacity(
    llamacpp_installed: None, tmp_path: Path
) -> None:
    """Four streams of 500 + 512 tokens in a pool of 2,048: one fits, of four the server ends all,
    with HTTP 200 and an error in the stream."""
    with LlamaServer(n_ctx=2048, slots=4, unified=True) as shared:
        job = run(tmp_path, shared.url, "--llm-contexts", "500", "--llm-concurrency", "1,4",
                  "-k", "decode", "--llm-capacity", "try", "--llm-max-tokens", "512",
                  "--llm-prompts", "distinct")  # fmt: skip
    assert job.measurement("decode[500-c1]")["status"] == "valid", job.text
    measured = job.measurement("decode[500-c4]")
    assert measured["status"] == "over_capacity"
    assert "context size" in measured["reason"].lower()
    assert measured["total_tok_s"] is None
    assert job.code == 0
