"""A simulator for all tests of this folder, and one real run against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, RunResult
from pytest_llmperf.report.json import read
from pytest_llmperf.sim.process import start
from tests.e2e.conftest import perf  # noqa: F401
from tests.e2e.project import ROOT
from tests.gate.project import GRID, SHORT, run_pytest


@pytest.fixture(scope="session")
def sim() -> Iterator[str]:
    """Address of a simulated server."""
    with start("sim:rtxpro6k_x4?speed=4") as process:
        yield process.url


@pytest.fixture(scope="session")
def other_sim() -> Iterator[str]:
    """Address of another one."""
    with start("sim:rtxpro6k_x4?speed=4&seed=1") as process:
        yield process.url


@pytest.fixture(scope="session")
def measured(sim: str, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """What a run of the small grid found."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "perf_tests").symlink_to(ROOT / "perf_tests")
    for _ in range(3):
        run = run_pytest(
            folder, "perf_tests", f"--llm-url={sim}", *GRID, *SHORT, "--llm-report=json:r.json"
        )
        if run.returncode == 0:
            break
    assert run.returncode == 0, run.stdout
    return read(Path(folder / "r.json"))


@pytest.fixture
def url(sim: str) -> str:
    """The option that names the simulator."""
    return f"--llm-url={sim}"


@pytest.fixture
def quick(measured: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside this process measure at once what ``measured`` did: the machine's load is out
    of the game where it is not what a test is about."""
    found = {record.cell: record.measurement for record in measured.cells}

    async def answer(self: Measurer, cell: Cell) -> Measurement:
        measurement = found[cell.id]
        assert measurement is not None
        return measurement

    monkeypatch.setattr(Measurer, "prefill", answer)
    monkeypatch.setattr(Measurer, "decode", answer)
