"""The shipped profiles hold every figure and fact of the two published reports."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.baseline.file import dumps, load
from pytest_llmperf.baseline.importer import RUN_ID, main, read_number, read_report
from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.baseline.schema import STORED
from pytest_llmperf.model.errors import ConfigError

REPORTS = Path(__file__).parent.parent / "data" / "reports"
ROWS = {"rtxpro6k_x4": 64, "h200nvl_x2": 55}
OVER = {"rtxpro6k_x4": 22, "h200nvl_x2": 15}
profiles = pytest.mark.parametrize("profile", sorted(ROWS))


def report(profile: str) -> str:
    return (REPORTS / f"{profile}.txt").read_text(encoding="utf-8")


@profiles
def test_shipped_profile_is_what_the_importer_makes(profile: str) -> None:
    made = dumps(read_report(report(profile), profile))
    assert made == (shipped("baselines") / f"{profile}.yaml").read_text(encoding="utf-8")


@profiles
def test_every_figure_agrees_with_the_tables_as_data(profile: str) -> None:
    """The CSV files were made apart from our parser; no column and no row may differ or lack."""
    baseline = load(shipped("baselines") / f"{profile}.yaml")
    with (REPORTS / f"{profile}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(baseline.cells) == ROWS[profile]
    over = 0
    for row in rows:
        decode = row["phase"] == "decode"
        tail = f"-c{row['concurrency']}" if decode else ""
        cell = baseline.cells[f"{row['phase']}[{row['context']}{tail}]"]
        needs = int(row["concurrency"]) * (int(row["context_tokens"]) + 4096)
        if row["status"] == "over_capacity":
            over += 1
            assert cell.over_capacity is not None
            assert (cell.over_capacity.needs, cell.over_capacity.budget) == (needs, None)
        columns = {"avg_active": "active_avg"}
        if not decode:
            columns["total_tok_s"] = "prefill_tok_s"
        expected = {
            columns.get(name, name): float(value)
            for name, value in row.items()
            if value and name not in ("phase", "context", "context_tokens", "concurrency", "status")
        }
        assert cell.figures(RUN_ID) == expected, cell
    assert over == OVER[profile]


@profiles
def test_every_line_of_the_measurements_stands_in_the_baseline(profile: str) -> None:
    """Read the table a second way: all its numbers, in order, against the cells in file order."""
    text = report(profile).split("All measurements", 1)[1]
    lines = [line for line in text.splitlines() if line.startswith(("| Prefill", "| Sustained"))]
    cells = load(shipped("baselines") / f"{profile}.yaml").cells
    found = {}
    for line in lines:
        phase, context, requests, _status, *figures = [f.strip() for f in line.split("|")[1:-1]]
        key = f"prefill[{context}]" if phase == "Prefill" else f"decode[{context}-c{requests}]"
        plain = [f.replace(",", "").removesuffix(" ms").removesuffix(" s") for f in figures]
        found[key] = sorted(
            float(f.removesuffix("K")) * (1000 if f.endswith("K") else 1) for f in plain if f != "—"
        )
    assert found == {key: sorted(cell.figures(RUN_ID).values()) for key, cell in cells.items()}


def test_facts_of_the_four_card_report() -> None:
    baseline = load(shipped("baselines") / "rtxpro6k_x4.yaml")
    assert baseline.hardware.model_dump(exclude_none=True) == {
        "profile": "rtxpro6k_x4",
        "type": "Discrete GPU",
        "gpu": "RTX PRO 6000 Blackwell Server Edition",
        "gpu_count": 4,
        "vram_gb": 384,
        "os": "linux",
    }
    assert baseline.match.model == "deepseek-ai/DeepSeek-V4.1-Flash-1017"
    assert baseline.match.served_model == "deepseek"
    assert baseline.match.engine == "vllm"
    assert (baseline.settings.duration_s, baseline.settings.max_tokens) == (30, 4096)
    k = 1024
    assert baseline.settings.contexts == [8 * k, 16 * k, 32 * k, 64 * k, 128 * k, 256 * k, 519168]
    assert baseline.settings.prefill_contexts == [*baseline.settings.contexts, 524288]
    run = baseline.runs[RUN_ID].model_dump(exclude_none=True)
    command = run.pop("launch_command")
    assert run == {
        "engine": "vllm",
        "engine_version": "0.33.0rc1.dev141",
        "quantization": "MXFP4+FP8",
        "backend": "cuda",
        "repository": "github.com/vllm-project/vllm",
        "build": "cuda-13.0",
        "commit": "48dcffbb7c8f",
        "served_model": "deepseek",
        "revision": "main",
        "bench": "llm-inference-bench v0.8.0",
        "decode_test": "Fixed duration",
        "prefill_mode": "Measured during decode warm-up",
        "max_model_len": 524288,
        "simulated": False,
        "note": "Reconstructed from current recipes/nvidia-rtxpro6k/deepseek-ai/"
        "vllm_deepseek-ai_DeepSeek-V4.1-Flash-1017_speculative_dspark_7_ngram_ram_rtxpro6kx4.sh; "
        "not captured runtime argv.",
        "info": {},
    }
    assert command.startswith("env VLLM_ENGINE_READY_TIMEOUT_S=3600 VLLM_B12X_MOE_FP4_FORCE_A16=1 ")
    assert command.endswith(" --enable-prefix-caching")
    assert command + "Prefill" in report("rtxpro6k_x4")


def test_facts_of_the_two_card_report() -> None:
    baseline = load(shipped("baselines") / "h200nvl_x2.yaml")
    hardware = baseline.hardware
    assert (hardware.gpu, hardware.gpu_count, hardware.vram_gb) == ("H200 NVL", 2, 282)
    assert baseline.match.served_model == "deepseek-ai/DeepSeek-V4.1-Flash-1017"
    assert baseline.settings.contexts[-1] == 257024
    assert baseline.settings.prefill_contexts[-2:] == [257024, 262144]
    run = baseline.runs[RUN_ID]
    assert (run.engine_version, run.build, run.commit) == ("0.32.0", "cuda-13.2", None)
    assert (run.max_model_len, run.bench) == (262144, "llm-inference-bench v0.6.2")
    assert run.note is None
    assert run.launch_command is not None
    assert run.launch_command.startswith("env VLLM_USE_RUST_FRONTEND=0 ")
    assert run.launch_command + "Prefill" in report("h200nvl_x2")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18.5K", 18500),
        ("18K", 18000),
        ("1,037.5", 1037.5),
        ("2,709.0", 2709.0),
        ("442 ms", 442),
        ("31,277 ms", 31277),
        ("6.3 ms", 6.3),
        ("30.0 s", 30.0),
        ("0", 0),
    ],
)
def test_figures_as_reports_write_them(text: str, value: float) -> None:
    number = read_number(text)
    assert number == value
    assert type(number) is type(value)


@pytest.mark.parametrize("text", ["", "—", "1.5M", "-3", "nan", "1 GB"])
def test_anything_else_is_no_figure(text: str) -> None:
    with pytest.raises(ConfigError, match="not a figure"):
        read_number(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 8K | 153.782 ms TTFT |", "| 8K | 153.882 ms TTFT |"),
        ("8K context18.5K442 ms TTFT", "8K context18.6K442 ms TTFT"),
    ],
)
def test_tables_that_disagree_are_refused(old: str, new: str) -> None:
    """The matrix and the prefill chart repeat the figures: a slip of the parser shows there."""
    text = report("rtxpro6k_x4")
    assert old in text
    with pytest.raises(ConfigError, match=r"\[8K"):
        read_report(text.replace(old, new), "x")


def test_another_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="is this the text of a report"):
        read_report("Speed test matrix\n", "x")


def test_command_writes_the_profile() -> None:
    path = REPORTS / "h200nvl_x2.txt"
    command = [sys.executable, "-m", "pytest_llmperf.baseline.importer", str(path), "h200nvl_x2"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == (shipped("baselines") / "h200nvl_x2.yaml").read_bytes()


def test_command_explains_a_file_it_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["missing.txt", "x"]) == 1
    assert "missing.txt: cannot be read" in capsys.readouterr().err
    assert main([]) == 2


def test_stored_metrics_are_fields_of_a_measurement() -> None:
    from pytest_llmperf.model.metrics import METRICS
    from pytest_llmperf.model.result import Measurement

    assert set(METRICS) <= set(STORED) <= set(Measurement.model_fields)
