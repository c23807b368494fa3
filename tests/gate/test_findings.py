"""What is found of the server itself: it fails the run by name, or stands first in a failure."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.model.result import Outcome, RunResult
from pytest_llmperf.report.json import read
from tests.gate.project import LAB, WIDE, words, write_profile

pytestmark = pytest.mark.usefixtures("quick")
THREE = (0.9, 1.0, 1.1)
"""As measured, with so much noise that no cell fails."""


@pytest.fixture
def smaller(measured: RunResult) -> str:
    """A server with nine tenths of the KV cache."""
    assert measured.server is not None
    assert measured.server.kv_tokens is not None
    return f"--llm-url=sim:rtxpro6k_x4?kv_tokens={int(measured.server.kv_tokens * 0.9)}"


def result_of(perf: pytest.Pytester) -> RunResult:
    return read(perf.path / "llmperf-report/results.json")


def test_a_smaller_kv_cache_fails_the_run_by_name(
    perf: pytest.Pytester, measured: RunResult, smaller: str
) -> None:
    """Every cell fits and is as fast; exit 1, the matrix's own failure, and every report say so."""
    write_profile(perf, measured, *THREE)
    result = perf.runpytest("perf_tests", smaller, *LAB, *WIDE, "--junit-xml=junit.xml")
    assert result.ret == 1
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "llmperf: kv-cache: the KV cache is 10% smaller than in the baseline: *",
            "The server is not what it was: kv-cache. *KV cache *",
        ]
    )
    run = result_of(perf)
    assert [finding.code for finding in run.findings] == ["kv-cache"]
    assert run.failed_tests == []
    suite = ET.parse(perf.path / "junit.xml")
    (failure,) = suite.iter("failure")
    assert "kv-cache" in failure.get("message", "")
    for name in ("report.html", "report.md"):
        report = (perf.path / "llmperf-report" / name).read_text()
        assert "the KV cache is 10% smaller than in the baseline" in report


def test_it_fails_a_slice_too(perf: pytest.Pytester, measured: RunResult, smaller: str) -> None:
    """Without the matrix no test fails; the exit code does, and JUnit has it with each cell."""
    write_profile(perf, measured, *THREE)
    junit = "--junit-xml=junit.xml"
    result = perf.runpytest("perf_tests", smaller, *LAB, *WIDE, "-k", "decode", junit)
    assert result.ret == 1
    result.assert_outcomes(passed=2, deselected=2)
    properties = [
        prop.get("value", "")
        for prop in ET.parse(perf.path / "junit.xml").iter("property")
        if prop.get("name") == "llmperf_findings"
    ]
    assert [text.partition(":")[0] for text in properties] == ["kv-cache"] * 2


def test_the_same_kv_cache_is_none(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    write_profile(perf, measured, *THREE)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE)
    assert result.ret == 0, words(result)
    run = result_of(perf)
    assert (run.findings, run.changed_facts) == ([], [])


def test_a_smaller_kv_cache_is_accepted_with_a_reason_only(
    perf: pytest.Pytester, measured: RunResult, smaller: str
) -> None:
    """And then it is what the next run is compared with."""
    profile = write_profile(perf, measured, *THREE)
    before = profile.read_text()
    add = ["--update-baselines", "--llm-update-mode=add"]
    refused = perf.runpytest("perf_tests", smaller, *LAB, *WIDE, *add)
    assert refused.ret == 1
    refused.stdout.fnmatch_lines(["baseline not updated: the KV cache is 10% smaller*"])
    assert profile.read_text() == before
    reason = "--llm-update-reason=a second model shares the GPU"
    accepted = perf.runpytest("perf_tests", smaller, *LAB, *WIDE, *add, reason)
    assert accepted.ret == 0, words(accepted)
    assert len(load(profile).runs) == len(THREE) + 1
    again = perf.runpytest("perf_tests", smaller, *LAB, *WIDE)
    assert again.ret == 0, words(again)


def test_what_changed_stands_first_in_a_failure(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """Right after what failed, and in the banner: the likeliest cause."""
    profile = write_profile(perf, measured, 10.0)
    assert measured.server is not None
    version = measured.server.version
    assert version is not None
    profile.write_text(profile.read_text().replace(version, "0.32.0"))
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-k", "decode and c1")
    assert result.ret == 1
    (record,) = result_of(perf).cells
    assert record.outcome is Outcome.REGRESSED
    title, changed, *_ = record.message.splitlines()
    assert "is worse than its baseline" in title
    assert changed == f"changed since the baseline: engine version 0.32.0 -> {version}"
    report = (perf.path / "llmperf-report/report.md").read_text()
    assert f"Changed since the baseline: engine version 0.32.0 -&gt; {version}." in report
