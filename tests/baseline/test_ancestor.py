"""Result files of llm-inference-bench become baselines; what they lack is said, not invented."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.baseline.ancestor import Imported, read_results
from pytest_llmperf.baseline.file import dumps, loads
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.result import Measurement

SAMPLE = Path(__file__).parent.parent / "data" / "ancestor" / "llm_decode_bench-0.4.18.json"
RAW: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
RUN = "2026-11-30T174529"


def imported(change: Callable[[dict[str, Any]], object] = lambda raw: None) -> Imported:
    raw = copy.deepcopy(RAW)
    change(raw)
    return read_results(json.dumps(raw), "results.json", "bench")


def test_every_measured_cell_keeps_its_figures() -> None:
    """Seconds become milliseconds; medians are taken, not the means beside them."""
    baseline = imported().baseline
    for row in RAW["results"]:
        cell = baseline.cells[
            f"decode[{'16K' if row['context_tokens'] else '0'}-c{row['concurrency']}]"
        ]
        assert cell.figures(RUN) == pytest.approx(
            {
                "total_tok_s": row["aggregate_tps"],
                "per_request_tok_s": row["output_tps_per_user_p50"],
                "ttft_ms": row["ttft_p50"] * 1000,
                "ttft_p99_ms": row["ttft_p99"] * 1000,
                "itl_ms": row["inter_token_latency_p50"] * 1000,
                "active_avg": row["avg_running_reqs"],
                "output_tokens": row["client_output_tokens"],
                "measured_s": row["measurement_seconds"],
            },
            rel=1e-5,  # stored with six digits
        )
    assert baseline.cells["prefill[8K]"].figures(RUN) == {"prefill_tok_s": 183060, "ttft_ms": 45.0}
    assert set(baseline.cells) == {
        *(f"decode[0-c{n}]" for n in (1, 4, 8)),
        *(f"decode[16K-c{n}]" for n in (1, 4, 8)),
        "prefill[8K]",
        "prefill[16K]",
    }


def test_a_cell_that_was_not_run_for_capacity_is_over_capacity() -> None:
    """The file leaves it out; budget and matrix say why."""
    over = imported().baseline.cells["decode[16K-c8]"].over_capacity
    assert over is not None
    assert (over.needs, over.budget) == (8 * (16384 + 512), 100_000)


def test_the_baseline_can_be_read_back() -> None:
    """Its matrix, settings and run are there, so that the next run compares with it."""
    baseline = imported().baseline
    assert loads(dumps(baseline), "bench.yaml") == baseline
    assert baseline.settings.grid.contexts == (0, 16384)
    assert (baseline.settings.max_tokens, baseline.settings.duration_s) == (512, 3.0)
    run = baseline.runs[RUN]
    assert (run.bench, run.kv_tokens, run.token_source) == (
        "llm-inference-bench 0.4.18",
        100_000,
        "usage",
    )
    assert {name for name, values in baseline.cells["decode[0-c4]"].lists()} <= set(
        Measurement.model_fields
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_errors": 2}, "2 of its requests failed"),
        ({"underfilled": True, "avg_running_reqs": 2.5}, "the server ran 2.5 of 4 requests"),
        ({"warmup_timed_out": True}, "the server ran 4 of 4 requests"),
        ({"aggregate_tps": 0.0}, "it has no speed"),
        ({"aggregate_source": "prometheus_fallback"}, "its tokens were counted by prometheus"),
        ({"benchmark_mode": "request-count"}, "a number of requests was measured there"),
    ],
)
def test_a_cell_that_was_not_measured_as_labelled_is_left_out(
    change: dict[str, Any], words: str
) -> None:
    """And said so, with the reason; the other cells are taken."""
    result = imported(lambda raw: raw["results"][2].update(change))
    assert "decode[0-c4]" not in result.baseline.cells
    assert len(result.baseline.cells) == 7
    assert any(line.startswith(f"decode[0-c4]: {words}") for line in result.left_out)


def test_a_cell_missing_without_a_capacity_reason_is_said_to_be_unmeasured() -> None:
    """An interrupted run is no statement about capacity."""
    result = imported(lambda raw: raw["results"].pop(0))
    assert "decode[0-c1]: it was not measured" in result.left_out
    assert "decode[0-c1]" not in result.baseline.cells


def test_what_the_file_does_not_tell_stays_unknown() -> None:
    """Neither a GPU nor a version is invented; short prompts are pointed out."""
    result = imported()
    assert result.baseline.match.gpu is None
    assert result.baseline.settings.sampling is None
    assert any(line.startswith("GPU model, engine version") for line in result.left_out)
    assert any(line.startswith("prefill[16K]: taken, but its prompt had 16,213") for line in
               result.left_out)  # fmt: skip


@pytest.mark.parametrize(
    ("server", "expected"), [("localhost:8000", (4, 384)), ("http://gpu1:8000", (None, None))]
)
def test_gpus_count_only_where_the_server_was_on_the_measuring_host(
    server: str, expected: tuple[int | None, int | None]
) -> None:
    """The tool reads the GPUs of the host it runs on, which need not be the server's."""

    def change(raw: dict[str, Any]) -> None:
        raw["metadata"]["server"] = server
        raw["results"][0]["hardware_summary"] = {"gpu_count": 4, "vram_total_mb": 393216.0}

    baseline = imported(change).baseline
    assert (baseline.hardware.gpu_count, baseline.hardware.vram_gb) == expected
    assert baseline.match.gpu_count == expected[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "results.json: not JSON"),
        ("[]", "is this a result file of llm-inference-bench"),
        ('{"results": []}', "metadata: Field required"),
        ('{"metadata": {"version": "1", "mode": "completion_stats"}}', "'completion_stats'"),
        (json.dumps({**RAW, "results": [], "prefill": {}}), "holds no cell"),
        (json.dumps({**RAW, "prefill": {"-8": RAW["prefill"]["8192"]}}), "prefill_contexts.0"),
        (json.dumps({**RAW, "results": [{**RAW["results"][0], "aggregate_tps": float("nan")}]}),
         "finite number"),
        (json.dumps({**RAW, "results": [{**RAW["results"][0], "inter_token_latency_p50": 1e308}]}),
         "itl_ms"),
        (json.dumps({**RAW, "metadata": {**RAW["metadata"], "concurrency_levels": [-1]}}), "needs"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_words(text: str, words: str) -> None:
    """The error names the file, what is wrong with it, and what is wanted."""
    with pytest.raises(ConfigError) as caught:
        read_results(text, "results.json", "bench")
    assert words in str(caught.value)
    assert "results.json" in str(caught.value)
