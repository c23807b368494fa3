"""Exit codes that scripts can rely on: 0, 1, 2, 4, 5."""

from __future__ import annotations

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.model.result import RunResult
from tests.gate.project import GRID, LAB, SHORT, WIDE, words, write_profile


@pytest.mark.usefixtures("quick")
def test_0_nothing_is_worse(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    write_profile(perf, measured, 1.0)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE)
    assert result.ret == 0, words(result)
    result.stdout.fnmatch_lines(["*No regression in 3 measured cells*"])


@pytest.mark.usefixtures("quick")
def test_1_a_regression_fails_its_own_cell_alone(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """One table per cell, all three attempts in it, and the command that measures it again."""
    write_profile(perf, measured, 10.0)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-k", "512-c1")
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "total tok/s *: decode?512-c1? is worse* (lab, 1 run)",
            "*total tok/s*WORSE*",
        ]
    )
    assert "attempts" in words(result)
    assert "perf_tests/test_decode.py::test_decode[512-c1]' --llm-url" in words(result)


@pytest.mark.usefixtures("quick")
def test_1_an_update_says_what_it_refuses(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """At the end, where the user looks: an unchanged file alone would be a riddle."""
    write_profile(perf, measured, 10.0)
    result = perf.runpytest("perf_tests", url, *LAB, "-k", "512-c1", "--update-baselines")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*lab.yaml is unchanged", "refused: decode?512-c1?: worse*--llm-update-reason*"]
    )


def test_1_nothing_could_be_judged(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    """Only cells that the profile does not have: every test passes, the run is not green, and its
    headline does not say otherwise."""
    write_profile(perf, measured, 1.0)
    result = perf.runpytest(
        "perf_tests", url, *LAB, "--llm-contexts=600", "--llm-concurrency=1", "-k", "decode"
    )
    result.assert_outcomes(passed=1, deselected=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["Nothing to compare with. Every cell is new*"])


def test_1_every_cell_over_capacity(perf: pytest.Pytester, url: str) -> None:
    """All skipped would be exit 0: nothing was measured, which is said once, and why."""
    result = perf.runpytest("perf_tests", url, *GRID, *SHORT, "--llm-kv-tokens=600", "-k", "c2")
    result.assert_outcomes(skipped=1, deselected=3)
    assert result.ret == 1
    assert words(result).lower().count("nothing was measured") == 1
    result.stdout.fnmatch_lines(["*no cell fits this server: needs 3,072 KV tokens *has 600"])


def test_1_an_update_with_nothing_but_cells_over_capacity(perf: pytest.Pytester, url: str) -> None:
    """It measured nothing, and writes nothing: the server was started too small, say."""
    result = perf.runpytest(
        "perf_tests", url, *GRID, *SHORT, "--llm-kv-tokens=600", "-k", "c2", "--hardware=small",
        "--update-baselines",
    )  # fmt: skip
    assert result.ret == 1
    result.stdout.fnmatch_lines(["Nothing was measured*", "baseline not updated: nothing was mea*"])
    assert not (perf.path / "baselines/small.yaml").exists()


@pytest.mark.usefixtures("quick")
def test_0_an_update_takes_the_noisy_cell_along(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """It passed as within its tolerance; once the other one is accepted it is UPDATED too."""
    path = write_profile(perf, measured, 1.7)
    result = perf.runpytest(
        "perf_tests", url, *LAB, *WIDE, "-k", "decode", "--llm-update-reason=new kernel",
        "--llm-tolerance=total_tok_s@decode[512-c1]=0.1", "--update-baselines",
    )  # fmt: skip
    assert result.ret == 0, words(result)
    result.stdout.fnmatch_lines(["UPDATED decode?512-c1?, decode?512-c2?", "2 of 2 cells updated*"])
    assert path.read_text().count("accepted: new kernel") == 1
    assert [len(c.runs) for c in load(path).cells.values()] == [1, 2, 2]


@pytest.mark.usefixtures("quick")
def test_0_a_dry_run_does_not_say_that_it_updated(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """The diff is shown, and the file stays."""
    path = write_profile(perf, measured, 1.7)
    before = path.read_text()
    result = perf.runpytest(
        "perf_tests", url, *LAB, *WIDE, "-k", "512-c1", "--llm-update-reason=new kernel",
        "--llm-tolerance=total_tok_s@decode[512-c1]=0.1", "--update-baselines", "--llm-dry-run",
    )  # fmt: skip
    assert result.ret == 0, words(result)
    result.stdout.fnmatch_lines(
        ["Baseline not updated. Why: a dry run.", "*lab.yaml would change:"]
    )
    assert path.read_text() == before


@pytest.mark.usefixtures("quick")
def test_1_an_update_whose_file_was_changed_meanwhile(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """Nothing is written over, and no report says that something was."""
    path = write_profile(perf, measured, 1.7)
    perf.makeconftest(
        f"""
        def pytest_runtest_teardown(item):
            with open({str(path)!r}, "a") as file:
                file.write("# a colleague was here\\n")
        """
    )
    result = perf.runpytest(
        "perf_tests", url, *LAB, *WIDE, "-k", "512-c1", "--llm-update-reason=new kernel",
        "--llm-tolerance=total_tok_s@decode[512-c1]=0.1", "--update-baselines",
    )  # fmt: skip
    assert result.ret == 1, words(result)
    result.stdout.fnmatch_lines(["Baseline not updated. Why: *"])
    assert "updated, none failed" not in words(result)


def test_2_interrupted(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    """What was measured is reported; no baseline is touched."""
    path = write_profile(perf, measured, 1.0)
    before = path.read_text()
    perf.makeconftest(
        """
        def pytest_runtest_teardown(item):
            if "c1" in item.name:
                raise KeyboardInterrupt
        """
    )
    result = perf.runpytest_subprocess(
        "perf_tests", url, *LAB, "--update-baselines", "--llm-update-mode=add", "-p", "no:randomly"
    )
    assert result.ret == 2
    result.stdout.fnmatch_lines(["*not updated: the run was interrupted*"])
    assert path.read_text() == before
    assert (perf.path / "llmperf-report/report.html").is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--llm-runs=2"], "*--llm-runs: a run is one server start*"),
        (["--llm-runs=1.5"], "*--llm-runs: 1.5 is not a whole number*"),
        (["--llm-runs=0"], "*--llm-runs: 0* must be at least 1*"),
        (["--llm-against=http://x", "--hardware=lab", "--update-baselines"], "*updates no base*"),
        (["--llm-against=http://x", "--llm-serve=sleep 1"], "*where will 'sleep' listen*"),
        (["--llm-serve=no-such-program --port 1"], "*there is no program 'no-such-program'*"),
        (["--llm-serve=sleep 'x --port 1"], "*--llm-serve: No closing quotation*"),
    ],
)
def test_4_usage_errors(perf: pytest.Pytester, args: list[str], message: str, url: str) -> None:
    """Before any load, with what to do."""
    server = [] if any("serve" in a for a in args) else [url]
    result = perf.runpytest("perf_tests", *server, *GRID, *args)
    assert result.ret == 4
    result.stderr.fnmatch_lines([message])


def test_4_several_runs_are_only_ever_added(perf: pytest.Pytester) -> None:
    result = perf.runpytest(
        "perf_tests", "--llm-url=sim", *GRID, "--llm-runs=2", "--hardware=new",
        "--update-baselines", "--llm-update-mode=all",
    )  # fmt: skip
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*2 runs can only be added*"])


def test_5_nothing_selected(perf: pytest.Pytester, url: str) -> None:
    assert perf.runpytest("perf_tests", url, *GRID, "-k", "nonesuch").ret == 5
