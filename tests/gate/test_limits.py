"""Absolute limits and watched metrics, from the command line to every report."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_llmperf.commands.main import main
from pytest_llmperf.model.result import Outcome, RunResult
from pytest_llmperf.report.json import read
from tests.gate.project import GRID, LAB, SHORT, WIDE, words, write_profile

pytestmark = pytest.mark.usefixtures("quick")
BREAKS = "total_tok_s@decode[512-c2]=1000000"
KEEPS = "total_tok_s@decode[512-c1]=0.1"


def result_of(perf: pytest.Pytester) -> RunResult:
    return read(perf.path / "llmperf-report/results.json")


def properties(perf: pytest.Pytester) -> dict[str, str]:
    found = ET.parse(perf.path / "junit.xml").iter("property")
    return {prop.get("name", ""): prop.get("value", "") for prop in found}


def add_lines(profile: Path, lines: str) -> None:
    profile.write_text(profile.read_text().replace("\nruns:", f"\n{lines}\nruns:", 1))


def test_a_limit_fails_its_cell_without_any_profile(perf: pytest.Pytester, url: str) -> None:
    """After two more attempts; the terminal, every report and JUnit say what, and which limit."""
    args = [*GRID, *SHORT, f"--llm-limit={BREAKS}", f"--llm-limit={KEEPS}", "--junit-xml=junit.xml"]
    result = perf.runpytest("perf_tests", url, *args)
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    line = "*limit 1,000,000.0: * % beyond (error * %), by total_tok_s@decode[[]512-c2]"
    result.stdout.fnmatch_lines(
        ["*LIMIT decode*", "Limits: *1 kept*", "1 of 3 cells failed: 1 limit*"]
    )
    run = {record.cell: record for record in result_of(perf).cells}
    broken = run["decode[512-c2]"]
    assert (broken.outcome, len(broken.attempts)) == (Outcome.LIMIT, 3)
    assert [c.verdict for c in run["decode[512-c1]"].limits] == ["kept"]
    assert run["prefill[512]"].limits == []
    result.stdout.fnmatch_lines([line.split(" (error")[0] + "*"])
    for name in ("report.html", "report.md"):
        report = (perf.path / "llmperf-report" / name).read_text().replace("\\", "")
        assert "limit 1,000,000.0" in report
        assert "limit 0.1" in report
    found = properties(perf)
    assert found["llmperf_outcome"] == "LIMIT"
    assert found["llmperf_total_tok_s_limit"] == "1000000.0"
    assert "limit 1,000,000.0" in found["llmperf_limits_broken"]


def test_limits_that_hold_are_a_green_run(perf: pytest.Pytester, url: str) -> None:
    """A misspelt one beside them is named."""
    idle = "ttft_ms@decode[64K-*]=5"
    args = [*GRID, *SHORT, f"--llm-limit={KEEPS}", f"--llm-limit={idle}"]
    result = perf.runpytest("perf_tests", url, *args)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*no cell has the limit ttft_ms@decode*", "No limit is broken in 1 measured cell*"]
    )


def test_a_profiles_limit_is_judged_beside_the_baseline(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """Nothing is worse, and a cell fails; the command line may set another value."""
    profile = write_profile(perf, measured, 1.0)
    add_lines(profile, 'limits: {"total_tok_s@decode[512-c2]": 1000000}')
    decode = ["perf_tests/test_decode.py", url, *LAB, *WIDE]
    assert perf.runpytest(*decode).ret == 1
    run = {record.cell: record for record in result_of(perf).cells}
    assert run["decode[512-c2]"].outcome is Outcome.LIMIT
    assert run["decode[512-c1]"].outcome is Outcome.PASS
    assert {c.verdict for c in run["decode[512-c2]"].comparisons} <= {"ok", "observed"}
    assert perf.runpytest(*decode, "--llm-limit=total_tok_s@decode[512-c2]=0.1").ret == 0


def test_an_update_does_not_lift_a_limit(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """What was measured is stored, and the cell fails all the same."""
    profile = write_profile(perf, measured, 1.0)
    before = profile.read_text()
    args = ["--update-baselines", "--llm-update-mode=add", f"--llm-limit={BREAKS}"]
    assert perf.runpytest("perf_tests/test_decode.py", url, *LAB, *WIDE, *args).ret == 1
    assert profile.read_text() != before
    run = {record.cell: record for record in result_of(perf).cells}
    assert (run["decode[512-c2]"].outcome, run["decode[512-c2]"].failed) == (Outcome.LIMIT, True)
    assert run["decode[512-c1]"].outcome is Outcome.UPDATED


def test_what_is_watched_warns_and_the_run_is_green(
    perf: pytest.Pytester, measured: RunResult, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell ten times slower than its baseline: in the terminal, the reports, JUnit, and the
    job summary, with no failure."""
    summary = perf.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    profile = write_profile(perf, measured, 10.0, 10.0, 10.0)
    add_lines(profile, 'gate: {"*@decode[*]": watch, prefill_tok_s: watch}')
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "--junit-xml=junit.xml")
    assert result.ret == 0, words(result)
    result.stdout.fnmatch_lines(
        ["note: watched: decode*total tok/s*", "::warning title=watched::*"]
    )
    assert "::error" not in words(result)
    assert "watched: decode" in summary.read_text().replace("\\", "")
    page = (perf.path / "llmperf-report/report.html").read_text()
    assert "<strong>watched</strong>: decode" in page
    assert "total tok/s" in properties(perf)["llmperf_watched"]
    assert {record.outcome for record in result_of(perf).cells} == {Outcome.PASS}


def test_compare_judges_limits_too(
    perf: pytest.Pytester,
    measured: RunResult,
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the profile and of the command line."""
    profile = write_profile(perf, measured, 1.0)
    assert perf.runpytest("perf_tests", url, *GRID, *SHORT).ret == 0
    wide = [f"--tolerance={text.partition('tolerance=')[2]}" for text in WIDE]
    command = ["compare", str(profile), str(perf.path / "llmperf-report/results.json"), *wide]
    assert main(command) == 0
    assert main([*command, f"--limit={BREAKS}"]) == 1
    assert "LIMIT decode[512-c2]" in capsys.readouterr().out
