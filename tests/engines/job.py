"""``pytest perf_tests`` as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERF_TESTS = Path(__file__).resolve().parents[2] / "perf_tests"


@dataclass(frozen=True)
class Job:
    """What came of a run: exit code, terminal, and its cells by name as in ``results.json``."""

    code: int
    text: str
    cells: dict[str, dict[str, Any]]

    def measurement(self, cell: str) -> dict[str, Any]:
        measured: dict[str, Any] = self.cells[cell]["measurement"]
        return measured


def run_job(folder: Path, url: str, *args: str, timeout_s: float = 400) -> Job:
    """Measure the server at ``url`` from the project in ``folder``."""
    report = folder / "llmperf-report/results.json"
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", str(PERF_TESTS), "--rootdir", str(folder)),
        *("-c", "/dev/null", "-o", "asyncio_default_fixture_loop_scope=function"),
        *("-p", "no:randomly", "-p", "no:cacheprovider", "--llm-url", url, *args),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s)
    results = json.loads(report.read_text()) if report.exists() else {"cells": []}
    cells = {cell["cell"]: cell for cell in results["cells"]}
    return Job(done.returncode, done.stdout + done.stderr, cells)
