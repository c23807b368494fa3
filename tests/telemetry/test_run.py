"""A run whose server's GPUs are on this host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import sys
import pytest_llmperf.run.startup as startup
from pytest_llmperf.server.telemetry import open_telemetry
from tests.telemetry.nvml import FakeGpu, FakeNvml

# the simulator has no GPU, so a run against it looks for none
sys.modules["pynvml"] = FakeNvml(FakeGpu(reasons=0x40, percent=50))
startup._see_gpus = lambda values, target: open_telemetry("http://localhost")
"""


def test_cells_carry_the_use_of_the_gpus_and_the_run_its_facts(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results.json and in the terminal, with the warnings on cell and run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile((ROOT / "perf_tests" / "test_decode.py").read_text())
    run = pytester.runpytest_subprocess(
        *("--llm-url=sim?speed=4", "--llm-contexts=512", "--llm-concurrency=2"),
        *("--llm-duration=1.5", "--llm-settle=0.2", "--llm-report=json:results.json"),
    )
    assert run.ret == 0
    run.stdout.fnmatch_lines(["llmperf: gpu-busy: GPU 0 is 50% busy*", "*gpu-throttled: GPU 0*"])
    results = json.loads((pytester.path / "results.json").read_text())
    (cell,) = results["cells"]
    (gpu,) = cell["measurement"]["gpus"]
    assert (gpu["name"], gpu["power_w"]) == ("NVIDIA H200", 412.345)
    assert "gpu-throttled" in [notice["code"] for notice in cell["measurement"]["warnings"]]
    assert results["run_info"]["gpu_count"] == "1"
    assert results["run_info"]["driver"] == "580.65.06"
