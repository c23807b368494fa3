"""``test_matrix``: last, only with the whole matrix, and a verdict of its own."""

from __future__ import annotations

import json

import pytest

from pytest_llmperf.model.result import RunResult
from tests.gate.project import CELLS, GRID, LAB, WIDE, words, write_profile

THREE = (0.99, 1.0, 1.01)


def ids(perf: pytest.Pytester, *args: str) -> list[str]:
    result = perf.runpytest("perf_tests", "--collect-only", "-q", *args)
    return [line.split("::")[1] for line in result.outlines if "::" in line]


@pytest.mark.parametrize("args", [[], ["-p", "randomly"], ["--ff"]])
def test_it_comes_last(perf: pytest.Pytester, measured: RunResult, args: list[str]) -> None:
    """Whoever shuffles."""
    write_profile(perf, measured, *THREE)
    assert ids(perf, *LAB, *args) == [*CELLS, "test_matrix"]


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["-k", "not c1"], [CELLS[0], CELLS[2]]),
        (["-k", "matrix"], []),
        (GRID, CELLS),
    ],
)
def test_it_is_absent_where_the_matrix_is_not_whole(
    perf: pytest.Pytester, measured: RunResult, args: list[str], left: list[str]
) -> None:
    """Cells deselected, or another grid than the profile's."""
    write_profile(perf, measured, *THREE)
    assert ids(perf, *LAB, *args) == left


@pytest.mark.usefixtures("quick")
def test_too_few_runs_are_said(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    """Skipped with the reason: no failure, and no cell over capacity."""
    write_profile(perf, measured, 1.0)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["SKIPPED * no metric has 2 runs*"])
    assert "OVERCAP" not in words(result)


@pytest.mark.usefixtures("quick")
def test_all_cells_a_little_slower_fail_it_alone(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """Every cell within its tolerance; together they are certain, and the report says so."""
    write_profile(perf, measured, *(factor * 1.1 for factor in THREE))
    result = perf.runpytest("perf_tests", url, *LAB)
    result.assert_outcomes(passed=3, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["The cells together are worse*", "all cells: steps/s -*WORSE"], consecutive=False
    )
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert "all cells: steps/s -" in report["matrix"]
    assert "3 cells together are worse" in (perf.path / "llmperf-report/report.md").read_text()


@pytest.mark.usefixtures("quick")
def test_nothing_changed_passes(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    write_profile(perf, measured, 0.9, 1.0, 1.1)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE)
    result.assert_outcomes(passed=4)
    assert result.ret == 0, words(result)
