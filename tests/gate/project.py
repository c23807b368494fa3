"""Profiles made of one real run against the simulator, better or worse by a known factor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmperf.baseline import update
from pytest_llmperf.baseline.file import Loaded, loads
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import CellRecord, Measurement, RunResult

SHORT = ["--llm-duration=0.4", "--llm-settle=0.1", "--llm-max-tokens=1024"]
GRID = ["--llm-contexts=512", "--llm-concurrency=1,2"]
LAB = ["--hardware=lab", *SHORT]
WIDE = [
    f"--llm-tolerance={name}={value}"
    for name, value in (
        ("prefill_tok_s", 0.7),
        ("total_tok_s", 0.7),
        ("itl_ms", 0.95),
        ("steps_s", 0.7),
    )
]
"""So wide that a short window on a busy machine is within, and a factor of ten is not."""
CELLS = ["test_prefill[512]", "test_decode[512-c1]", "test_decode[512-c2]"]


def scaled(measurement: Measurement, factor: float) -> Measurement:
    """As if the server had been so much faster. Without TTFT, which on a busy machine is luck."""
    values: dict[str, float | None] = {"ttft_ms": None, "ttft_p99_ms": None}
    for name, metric in METRICS.items():
        if name not in (*values, "tokens_per_step") and (value := measurement.value(name)):
            values[name] = value * factor if metric.better == "higher" else value / factor
    return measurement.model_copy(update=values)


def faster(record: CellRecord, factor: float) -> CellRecord:
    assert record.measurement is not None
    return record.model_copy(update={"measurement": scaled(record.measurement, factor)})


def profile_text(run: RunResult, factors: Sequence[float]) -> str:
    """A profile with a run for each factor."""
    made: Loaded | None = None
    for number, factor in enumerate(factors, start=1):
        one = run.model_copy(
            update={
                "profile": "lab",
                "date": f"2026-01-0{number}T00:00:00+00:00",
                "cells": [faster(record, factor) for record in run.cells],
            }
        )
        text = update.plan(made, one, mode="add", reason="test").after
        made = Loaded(Path("lab.yaml"), text, loads(text, "lab.yaml"))
    assert made is not None
    return made.text


def write_profile(perf: pytest.Pytester, run: RunResult, *factors: float) -> Path:
    """``baselines/lab.yaml``: as measured, times each factor."""
    path = perf.path / "baselines" / "lab.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(profile_text(run, factors))
    return path


def run_pytest(folder: Path, *args: str, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    """pytest as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def words(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines)
