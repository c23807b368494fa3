"""The main job against the real llama.cpp server: measure, store, measure again, be judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.llamacpp import LlamaServer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("llamacpp_installed")]

PERF_TESTS = Path(__file__).resolve().parents[2] / "perf_tests"
MAX_TOKENS = 64


@pytest.fixture(scope="module")
def server(llamacpp_installed: None) -> Iterator[LlamaServer]:
    """Four slots that split 16K."""
    with LlamaServer(n_ctx=16_384, slots=4) as started:
        yield started


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, the same for all tests here: what one stores the next compares with."""
    return tmp_path_factory.mktemp("project")


def run(project: Path, server: LlamaServer, *args: str) -> tuple[int, str, dict[str, Any]]:
    """pytest perf_tests as a user runs it: exit code, terminal, results.json."""
    command = [
        *(sys.executable, "-m", "pytest", str(PERF_TESTS), "--rootdir", str(project)),
        *("-c", "/dev/null", "-o", "asyncio_default_fixture_loop_scope=function"),
        *("-p", "no:randomly", "--llm-url", server.url, "--hardware", "laptop"),
        *("--llm-contexts", "512,2K", "--llm-max-tokens", str(MAX_TOKENS)),
        *("--llm-duration", "3", "--llm-settle", "0.5", *args),
    ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=400)
    results = json.loads((project / "llmperf-report/results.json").read_text())
    return done.returncode, done.stdout + done.stderr, results


def cells(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["cell"]: cell for cell in results["cells"]}


def test_a_matrix_is_measured_stored_and_judged(project: Path, server: LlamaServer) -> None:
    """--update-baselines creates the profile; the next run is judged against it."""
    grid = ["--llm-concurrency", "1,2,4"]
    code, text, results = run(project, server, *grid, "--update-baselines")
    assert code == 0, text
    assert {cell["outcome"] for cell in results["cells"]} == {"UPDATED"}
    assert (project / "baselines/laptop.yaml").read_text().startswith("schema: 1\n")

    for name, cell in cells(results).items():
        measured = cell["measurement"]
        # a tokenizer with the template applied: the stated exactness is 8 tokens or 0.1 %
        assert abs(measured["prompt_tokens"] - measured["context"]) <= 8, name
        if measured["phase"] == "decode":
            assert measured["in_flight_avg"] == pytest.approx(measured["concurrency"], rel=0.02)
            assert measured["total_tok_s"] > 1, name
            assert 0 < measured["itl_ms"] < 3000, name

    code, text, results = run(project, server, *grid, "--llm-tolerance", "total_tok_s=0.9",
                              "--llm-tolerance", "itl_ms=0.9", "--llm-tolerance", "ttft_ms=0.9",
                              "--llm-tolerance", "prefill_tok_s=0.9")  # fmt: skip
    judged = [c for cell in results["cells"] for c in cell["comparisons"] if c["gated"]]
    assert len(judged) >= 8, text
    assert {cell["outcome"] for cell in results["cells"]} <= {"PASS", "IMPROVED", "REGRESSED"}


def test_more_streams_than_slots_are_over_capacity(project: Path, server: LlamaServer) -> None:
    """Eight streams on four slots are never a number for eight."""
    code, text, results = run(
        project, server, "--llm-concurrency", "8", "-k", "decode", "--update-baselines"
    )
    assert code == 1, text  # nothing was measured
    for cell in results["cells"]:
        assert cell["measurement"]["status"] == "over_capacity"
        assert "admits 4 of 8" in cell["measurement"]["reason"]
        assert cell["measurement"]["total_tok_s"] is None


def test_without_a_limit_known_the_ramp_finds_it(project: Path, server: LlamaServer) -> None:
    """--llm-capacity try sends all eight, sees four of them wait, and says so."""
    args = ["--llm-concurrency", "8", "-k", "512-c8", "--llm-capacity", "try"]
    code, text, results = run(project, server, *args)
    (cell,) = results["cells"]
    assert code == 1, text
    assert cell["measurement"]["status"] == "over_capacity"
    assert "4 of 8" in cell["measurement"]["reason"]
