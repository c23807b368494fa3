"""A test of the user's own that fails by itself: the reports know."""

from __future__ import annotations

import json

import pytest

from pytest_llmperf.model.result import RunResult
from tests.gate.project import GRID, LAB, SHORT, WIDE, words, write_profile

OWN = """
import pytest

@pytest.mark.asyncio
async def test_first_token(llm):
    result = await llm.decode("512", 1)
    await llm.check(result)
    assert result.total_tok_s < 0
"""


@pytest.mark.usefixtures("quick")
def test_its_own_assertion_is_in_every_report(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    write_profile(perf, measured, 1.0)
    perf.makepyfile(test_own=OWN)
    result = perf.runpytest("test_own.py", url, *LAB, *WIDE)
    assert result.ret == 1
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert report["failed_tests"] == ["test_own.py::test_first_token"]
    for text in (words(result), (perf.path / "llmperf-report/report.md").read_text()):
        assert "1 test failed, though no cell did" in text
        assert "Failed by an assertion or error of its own: test" in text
        assert "No regression" not in text


@pytest.mark.usefixtures("quick")
def test_a_verdict_is_no_failure_of_its_own(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """Nor an assertion that a second try does not repeat, nor one that is expected to fail."""
    write_profile(perf, measured, 10.0)
    perf.makepyfile(
        test_own=OWN.replace("@pytest", "@pytest.mark.xfail\n@pytest", 1),
        test_twice="tries = []\ndef test_twice(llm):\n    tries.append(1)\n    assert tries[1:]\n",
    )
    result = perf.runpytest(".", url, *LAB, *WIDE, "--reruns=1")
    assert result.ret == 1
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert report["failed_tests"] == []


def test_of_several_runs_each_names_its_own(perf: pytest.Pytester) -> None:
    """Though one failed, the plain names are the last run's."""
    perf.makepyfile(test_own=OWN)
    result = perf.runpytest("test_own.py", "--llm-url=sim", "--llm-runs=2", *GRID, *SHORT)
    assert result.ret == 1
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert report["failed_tests"] == ["test_own.py::test_first_token[run2]"]
    assert words(result).count("1 test failed, though no cell did") == 2


def test_a_mark_that_is_missing_is_named(perf: pytest.Pytester, url: str) -> None:
    """pytest only says to install a plugin, which is there."""
    perf.makepyfile(test_own=OWN.replace("@pytest.mark.asyncio", ""))
    result = perf.runpytest("test_own.py", url, *SHORT)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*add @pytest.mark.asyncio to the test*"])
