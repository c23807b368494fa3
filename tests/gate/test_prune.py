"""Stale cells: those the profile's matrix has no more, whatever part of it a run selects."""

from __future__ import annotations

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.model.result import RunResult
from tests.gate.project import CELLS, LAB, WIDE, words, write_profile

PRUNE = ("--update-baselines", "--llm-prune")
DECODE = "perf_tests/test_decode.py"
OWN = """
import pytest

@pytest.mark.asyncio
async def test_two(llm):
    await llm.check(await llm.decode("512", 2))
"""
OTHER = "--llm-contexts=1000"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("part", [DECODE, f"{DECODE}::{CELLS[1]}"])
def test_a_file_that_is_not_selected_makes_no_cell_stale(
    perf: pytest.Pytester, measured: RunResult, url: str, part: str
) -> None:
    write_profile(perf, measured, 1.0)
    result = perf.runpytest(part, url, *LAB, *WIDE)
    assert result.ret == 0
    assert "Stale:" not in words(result)


@pytest.mark.parametrize("part", [[DECODE], ["perf_tests", "-k", "c1"], ["perf_tests", OTHER]])
def test_prune_refuses_a_part_of_the_matrix(
    perf: pytest.Pytester, measured: RunResult, part: list[str]
) -> None:
    """Before anything is measured, or deleted."""
    path = write_profile(perf, measured, 1.0)
    before = path.read_text()
    result = perf.runpytest(*part, "--llm-url=http://127.0.0.1:1", *LAB, *PRUNE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llm-prune*needs the whole matrix of lab*"])
    assert path.read_text() == before


@pytest.mark.usefixtures("quick")
def test_a_cell_taken_out_of_the_profiles_matrix_is_stale_and_pruned(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    path = write_profile(perf, measured, 1.0)
    path.write_text(path.read_text().replace("concurrency: [1, 2]", "concurrency: [1]"))
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE)
    result.stdout.fnmatch_lines(["note: Stale: decode?512-c2? in the baseline*"])
    assert perf.runpytest("perf_tests", url, *LAB, *WIDE, *PRUNE).ret == 0
    assert list(load(path).cells) == ["prefill[512]", "decode[512-c1]"]


@pytest.mark.usefixtures("quick")
def test_a_cell_that_a_test_of_the_users_still_measures_is_not_stale(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    path = write_profile(perf, measured, 1.0)
    path.write_text(path.read_text().replace("concurrency: [1, 2]", "concurrency: [1]"))
    perf.makepyfile(test_own=OWN)
    result = perf.runpytest("perf_tests", "test_own.py", url, *LAB, *WIDE)
    assert result.ret == 0
    assert "Stale:" not in words(result)
