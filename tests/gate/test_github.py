"""GitHub Actions: what failed stands at its file, and the job has the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.model.result import Outcome, RunResult
from pytest_llmperf.report.github import ANNOTATIONS, annotate, append_summary
from pytest_llmperf.report.markdown import JOB_SUMMARY_BYTES
from tests.gate.project import LAB, WIDE, words, write_profile
from tests.support.results import SECRET, change, published_run, troubled_run


def test_each_failed_cell_is_an_error_at_its_test() -> None:
    """With the metrics that got worse, on one line, escaped as the runner wants it."""
    lines = annotate(troubled_run())
    assert all(line.startswith("::error ") and "\n" not in line for line in lines)
    (slow,) = [line for line in lines if "8K-c16" in line]
    assert slow.startswith(
        "::error file=perf_tests/test_decode.py,title=decode[8K-c16] REGRESSED::total tok/s: "
    )
    assert "%0A" in slow
    assert "%25" in slow
    assert not any(SECRET in line for line in lines)


def test_nothing_failed_is_no_annotation() -> None:
    assert annotate(published_run()) == []


def test_no_more_than_a_step_shows() -> None:
    """The rest is named in the last one, instead of dropped without a word."""
    run = published_run()
    for record in run.cells[:30]:
        run = change(run, record.cell, outcome=Outcome.INVALID, message="bad: a, b")
    run = run.model_copy(update={"matrix": "The cells together are worse:\nall cells: ITL +4 %"})
    lines = annotate(run)
    assert len(lines) == ANNOTATIONS
    assert "title=22 more cells failed::" in lines[-2]
    assert lines[-1] == (
        "::error title=the matrix is worse::The cells together are worse:%0Aall cells: ITL +4 %25"
    )


def test_the_summary_keeps_what_others_wrote_and_the_limit(tmp_path: Path) -> None:
    """1 MiB for all of a step's writers together."""
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    append_summary(published_run(), path)
    assert path.read_text().startswith("before\n\n# ")
    path.write_text("x" * (JOB_SUMMARY_BYTES - 4000))
    append_summary(troubled_run(), path)
    assert path.stat().st_size <= JOB_SUMMARY_BYTES
    assert "Left out to fit the size limit" in path.read_text()


@pytest.mark.usefixtures("quick")
def test_a_run_under_actions_writes_both(
    perf: pytest.Pytester, measured: RunResult, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run elsewhere neither."""
    summary = perf.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    write_profile(perf, measured, 10.0)
    args = ["perf_tests", url, *LAB, *WIDE, "-k", "512-c1"]
    assert "::error" not in words(perf.runpytest(*args))
    assert not summary.exists()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = perf.runpytest(*args)
    result.stdout.fnmatch_lines(["::error file=perf_tests/test_decode.py,title=decode*"])
    assert "# DeepSeek" in summary.read_text()
