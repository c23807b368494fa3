"""The plugins that people have beside ours, with their real code."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_llmperf.model.result import RunResult
from tests.gate.project import CELLS, GRID, LAB, SHORT, WIDE, run_pytest, words, write_profile


def ran(result: pytest.RunResult) -> list[str]:
    """Cells in the order they ran, by the names that -v shows."""
    return re.findall(r"^perf_tests/\S+::(test_\S+) (?:PASS|FAIL)", words(result), re.MULTILINE)


def properties(path: Path) -> dict[str, list[tuple[str, str]]]:
    cases = ET.parse(path).getroot().iter("testcase")
    return {
        case.get("name", ""): [
            (p.get("name", ""), p.get("value", "")) for p in case.iter("property")
        ]
        for case in cases
    }


def test_xdist_is_refused_against_one_server(perf: pytest.Pytester, url: str) -> None:
    """Not green, and the reason stands there; nothing was measured."""
    run = run_pytest(perf.path, "perf_tests", "-n", "2", url, *GRID, *SHORT)
    assert run.returncode not in (0, 5)
    assert "2 workers of pytest-xdist would measure each other's load" in run.stdout
    assert "passed" not in run.stdout
    assert not (perf.path / "llmperf-report").exists()


def test_xdist_with_a_server_for_each_worker(
    perf: pytest.Pytester, sim: str, other_sim: str
) -> None:
    """Contexts stay together, and there is one report of all, written where the run was started."""
    grid = ["--llm-contexts=512,600", "--llm-concurrency=1"]
    run = run_pytest(
        perf.path, "perf_tests", "-n", "2", f"--llm-url={sim},{other_sim}", *grid, *SHORT, "-v"
    )
    assert run.returncode == 0, run.stdout
    found = re.findall(r"^\[(gw\d)\].* PASSED\D*::(test_\S+)", run.stdout, re.MULTILINE)
    workers = {name: worker for worker, name in found}
    assert len(workers) == 4
    for context in ("512", "600"):
        assert workers[f"test_prefill[{context}]"] == workers[f"test_decode[{context}-c1]"]
    assert len(set(workers.values())) == 2
    report = json.loads((perf.path / "llmperf-report/results.json").read_text())
    assert len(report["cells"]) == 4
    assert report["finished"]
    assert "4 cells measured" in run.stdout


@pytest.mark.parametrize("more", [["--update-baselines", "--hardware=x"], ["--llm-runs=2"]])
def test_a_worker_updates_nothing(
    perf: pytest.Pytester, sim: str, other_sim: str, more: list[str]
) -> None:
    run = run_pytest(
        perf.path, "perf_tests", "-n", "2", f"--llm-url={sim},{other_sim}", *GRID, *SHORT, *more
    )
    assert run.returncode not in (0, 5)
    assert "a worker of pytest-xdist updates no baseline" in run.stdout
    assert not (perf.path / "baselines").exists()


def test_several_servers_need_workers(perf: pytest.Pytester, sim: str, other_sim: str) -> None:
    result = perf.runpytest("perf_tests", f"--llm-url={sim},{other_sim}", *GRID)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*add -n 2*"])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_rerunfailures_keeps_the_first_verdict(
    perf: pytest.Pytester, measured: RunResult, url: str, family: str
) -> None:
    """In the report with all attempts; JUnit has each property once; still a failure."""
    write_profile(perf, measured, 10.0)
    result = perf.runpytest(
        "perf_tests", url, *LAB, *WIDE, "-k", "512-c1", "--reruns=1", "--junitxml=j.xml",
        "-o", f"junit_family={family}",
    )  # fmt: skip
    assert result.ret == 1
    (cell,) = json.loads((perf.path / "llmperf-report/results.json").read_text())["cells"]
    assert cell["outcome"] == "REGRESSED"
    assert "run again after REGRESSED" in cell["notes"]
    assert len(cell["attempts"]) == 6
    (found,) = properties(perf.path / "j.xml").values()
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    assert dict(found)["llmperf_outcome"] == "REGRESSED"
    assert float(dict(found)["llmperf_total_tok_s"]) > 0


@pytest.mark.usefixtures("quick")
def test_randomly_does_not_shuffle_cells(perf: pytest.Pytester, url: str) -> None:
    """Prefill first, then rising concurrency, for any seed."""
    for seed in (1, 2):
        args = ["-p", "randomly", "-p", "no:cacheprovider", f"--randomly-seed={seed}"]
        result = perf.runpytest("perf_tests", url, *GRID, *SHORT, "-v", *args)
        assert ran(result) == CELLS


def test_timeout_ends_a_cell_and_leaves_no_load(
    perf: pytest.Pytester, sim: str, measured: RunResult
) -> None:
    """The cell fails, the next one is measured undisturbed."""
    perf.makeconftest(
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if "c1" in item.name:
                    item.add_marker(pytest.mark.timeout(1))
        """
    )
    result = perf.runpytest_subprocess(
        "perf_tests", f"--llm-url={sim}", *GRID, "--llm-duration=3", "--llm-settle=0.1",
        "--llm-max-tokens=4096", "-k", "decode", "-p", "no:randomly",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1, deselected=2)
    (cell,) = json.loads((perf.path / "llmperf-report/results.json").read_text())["cells"]
    assert cell["cell"] == "decode[512-c2]"
    assert cell["measurement"]["server"]["running_mean"] < 2.5


def test_html_reports_of_pytest_html_count_overcap_as_skipped(
    perf: pytest.Pytester, url: str
) -> None:
    result = perf.runpytest(
        "perf_tests", url, *GRID, *SHORT, "--llm-kv-tokens=1600", "--html=r.html",
        "-k", "c1 or c2", "-rs",
    )  # fmt: skip
    result.assert_outcomes(passed=1, skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["OVERCAP *KV tokens*"])
    page = (perf.path / "r.html").read_text()
    assert "1 Skipped" in page
    assert "1 Passed" in page


@pytest.mark.usefixtures("quick")
def test_last_failed_stepwise_and_x(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    """A regression is its cell's own failure: --lf measures just that, -x and --sw stop there."""
    path = write_profile(perf, measured, 1.0)
    slow = re.sub(r"(decode\[512-c1\]:.*?total_tok_s: \[)[\d.]+", r"\g<1>99999", path.read_text(),
                  flags=re.DOTALL)  # fmt: skip
    path.write_text(slow)
    first = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-v", "-x", "-p", "no:randomly")
    assert ran(first) == CELLS[:2]
    assert first.ret == 1
    again = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-v", "--lf", "-p", "no:randomly")
    assert ran(again) == [CELLS[1]]
    ahead = perf.runpytest("perf_tests", "--collect-only", "-q", *LAB, "--ff", "-p", "no:randomly")
    assert [line.split("::")[1] for line in ahead.outlines if "::" in line] == [
        CELLS[1], CELLS[0], CELLS[2], "test_matrix",
    ]  # fmt: skip
    step = perf.runpytest("perf_tests", url, *LAB, *WIDE, "-v", "--sw", "-p", "no:randomly")
    assert ran(step)[-1] == CELLS[1]
    assert step.ret != 0


def test_warnings_as_errors_and_strict_mode(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """-W error, strict markers and configuration, junit xunit2: nothing of ours complains."""
    write_profile(perf, measured, 1.0)
    perf.makeini(
        """
        [pytest]
        asyncio_default_fixture_loop_scope = function
        asyncio_mode = strict
        addopts = --strict-markers --strict-config
        xfail_strict = true
        filterwarnings = error
        junit_family = xunit2
        """
    )
    run = run_pytest(perf.path, "perf_tests", url, *LAB, *WIDE, "--junitxml=j.xml")
    assert run.returncode == 0, run.stdout
    assert not re.search(r"warnings? summary|\d warning", run.stdout)
    assert dict(properties(perf.path / "j.xml")["test_decode[512-c1]"])["llmperf_outcome"] == "PASS"


def test_without_the_plugins_that_ours_knows(perf: pytest.Pytester, url: str) -> None:
    """Neither xdist nor the terminal need be there."""
    args = ["-p", "no:xdist", "-p", "no:terminal", "-p", "no:randomly", "-p", "no:html"]
    run = run_pytest(perf.path, "perf_tests", url, *GRID, *SHORT, "-k", "prefill", *args)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (perf.path / "llmperf-report/results.json").is_file()


@pytest.mark.parametrize("folded", [True, False])
def test_a_skip_of_another_kind_is_not_called_over_capacity(
    perf: pytest.Pytester, url: str, folded: bool
) -> None:
    """pytest's summary has the word of the first skip on every line, unless told not to fold."""
    perf.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                if "c2" in item.name:
                    item.add_marker(pytest.mark.skip(reason="no reason"))
        """
    )
    how = [] if folded else ["--no-fold-skipped"]
    result = perf.runpytest(
        "perf_tests", url, *GRID, *SHORT, "--llm-kv-tokens=600", "-k", "c1 or c2", "-rs", *how
    )
    result.assert_outcomes(skipped=2, deselected=2)
    result.stdout.fnmatch_lines(["SKIPPED *KV tokens*" if folded else "OVERCAP *KV tokens*"])
    result.stdout.fnmatch_lines(["SKIPPED *no reason"])
