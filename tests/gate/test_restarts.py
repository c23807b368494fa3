"""A breach is confirmed by another start of the server, where the run can start it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.model.result import CellRecord, Outcome, RunResult
from pytest_llmperf.report.json import read
from pytest_llmperf.server import starter
from pytest_llmperf.sim import parse_spec
from tests.e2e.project import alive, eventually, started
from tests.gate.project import GRID, LAB, WIDE, words, write_profile

SERVER = """
import os, sys
port, start, first, later = sys.argv[1:]
words = (first if start == "1" else later).split()
serve = [sys.executable, "-m", "pytest_llmperf.sim", "serve", "--port", port]
os.execv(sys.executable, [*serve, *words])
"""
SLOW, GOOD = "--speed=0.3", "--speed=4"
DECODE = ("-k", "decode")


def served(folder: Path, first: str, later: str) -> str:
    """The option that starts a server, the first time otherwise than later."""
    script = folder / "server.py"
    script.write_text(SERVER)
    return f"--llm-serve={sys.executable} {script} {{port}} {{start}} '{first}' '{later}'"


def found(perf: pytest.Pytester) -> tuple[RunResult, dict[str, CellRecord]]:
    run = read(perf.path / "llmperf-report/results.json")
    return run, {record.cell: record for record in run.cells}


def starts(record: CellRecord) -> list[int]:
    return [attempt.start for attempt in record.attempts]


def test_a_start_that_came_up_slow_is_no_regression(
    perf: pytest.Pytester, measured: RunResult
) -> None:
    """Another start is measured, and the cells after it stay there; each start has its log."""
    write_profile(perf, measured, 1.0)
    result = perf.runpytest("perf_tests", served(perf.path, SLOW, GOOD), *LAB, *WIDE, *DECODE)
    assert result.ret == 0, words(result)
    run, cells = found(perf)
    first, second = cells["decode[512-c1]"], cells["decode[512-c2]"]
    assert (first.outcome, starts(first)[:2]) == (Outcome.PASS, [1, 2])
    assert (second.outcome, set(starts(second))) == (Outcome.PASS, {starts(first)[-1]})
    assert [notice.code for notice in run.warnings] == ["starts-differ"]
    logs = [Path(name) for name in run.run_info["server_log"].split(", ")]
    assert [log.name for log in logs[:2]] == ["server.log", "server-start2.log"]
    assert all("on http" in (perf.path / log).read_text() for log in logs)


def test_a_slow_build_fails_at_every_start(perf: pytest.Pytester, measured: RunResult) -> None:
    """Three starts, all worse; with the restarts used up the next cell is confirmed within one,
    and says how to be surer."""
    write_profile(perf, measured, 1.0)
    result = perf.runpytest("perf_tests", served(perf.path, SLOW, SLOW), *LAB, *WIDE, *DECODE)
    assert result.ret == 1
    _, cells = found(perf)
    first, second = cells["decode[512-c1]"], cells["decode[512-c2]"]
    assert (first.outcome, starts(first)) == (Outcome.REGRESSED, [1, 2, 3])
    assert first.message.endswith("\nso at 3 starts of the server")
    assert (second.outcome, starts(second)) == (Outcome.REGRESSED, [3, 3, 3])
    assert "--llm-restarts lets the run confirm it at others" in second.message
    text = words(result)
    assert "(start 1 of the server)" in text
    assert "(start 3 of the server)" in text
    report = (perf.path / "llmperf-report/report.md").read_text()
    assert "3, start 3 of the server" in report
    assert (
        "Attempt 2, start 2 of the server" in (perf.path / "llmperf-report/report.html").read_text()
    )


def test_no_restart_where_none_is_wanted(perf: pytest.Pytester, measured: RunResult) -> None:
    write_profile(perf, measured, 1.0)
    serve = served(perf.path, SLOW, GOOD)
    result = perf.runpytest(
        "perf_tests", serve, *LAB, *WIDE, "-k", "decode and c1", "--llm-restarts=0"
    )
    assert result.ret == 1
    _, cells = found(perf)
    assert starts(cells["decode[512-c1]"]) == [1, 1, 1]


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_not_ours_is_not_restarted(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """The message says what else would tell a slow start from a slow build."""
    write_profile(perf, measured, 10.0)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, *DECODE)
    assert result.ret == 1
    _, cells = found(perf)
    record = cells["decode[512-c1]"]
    assert starts(record) == [1, 1, 1]
    last = record.message.splitlines()[-1]
    assert "--llm-serve" in last
    assert "llmperf compare" in last


@pytest.mark.usefixtures("quick")
def test_each_start_of_the_simulator_draws_its_own_noise(
    perf: pytest.Pytester, measured: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process each, and no two starts of a session alike."""
    write_profile(perf, measured, 10.0)
    specs: list[str] = []
    start = starter.start_sim

    def note(spec: str, **where: object) -> object:
        specs.append(spec)
        return start(spec, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(starter, "start_sim", note)
    spec = "sim:rtxpro6k_x4?noise=0.01&seed=5"
    result = perf.runpytest("perf_tests", f"--llm-url={spec}", *LAB, *WIDE, *DECODE)
    assert result.ret == 1
    assert [parse_spec(spec).start for spec in specs] == [1, 2, 3]
    _, cells = found(perf)
    assert starts(cells["decode[512-c1]"]) == [1, 2, 3]
    assert starts(cells["decode[512-c2]"]) == [3, 3, 3]


def test_no_two_starts_of_a_session_draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several runs the first starts are numbered as if no run ever started again."""
    specs: list[str] = []

    def note(spec: str, **where: object) -> SimpleNamespace:
        specs.append(spec)
        return SimpleNamespace(url="http://127.0.0.1:1", close=lambda: None)

    monkeypatch.setattr(starter, "start_sim", note)
    for run in (1, 2, 3):
        server = starter.SimStarter("sim", None, Path(), run, 3)
        for number in (1, 2, 3):
            server.start(number)
    drawn = [parse_spec(spec).start for spec in specs]
    assert drawn[::3] == [1, 2, 3]
    assert sorted(drawn) == list(range(1, 10))


@pytest.mark.usefixtures("quick")
def test_a_server_that_does_not_start_again_ends_the_run(
    perf: pytest.Pytester, measured: RunResult
) -> None:
    """What was measured counts, and the reason has the server's last words."""
    write_profile(perf, measured, 10.0)
    serve = served(perf.path, GOOD, "nonesuch")
    result = perf.runpytest("perf_tests", serve, *LAB, *WIDE, *DECODE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the server did not start again after decode?512-c1?*"])
    run, cells = found(perf)
    assert list(cells) == ["decode[512-c1]"]
    assert cells["decode[512-c1]"].outcome is Outcome.REGRESSED
    assert "nonesuch" in run.interrupted
    assert "server-start2.log" in run.interrupted


def test_ctrl_c_while_the_server_starts_again(perf: pytest.Pytester, measured: RunResult) -> None:
    """The run ends at once, with what it measured, and no server is left."""
    write_profile(perf, measured, 1.0)
    serve = served(perf.path, SLOW, f"{GOOD} --loading=60")
    with started(perf.path, "perf_tests", serve, *GRID, *LAB, *WIDE, "-k", "c1 or 512-c2") as run:
        log = perf.path / "llmperf-report/server-start2.log"
        assert eventually(lambda: log.is_file() and "on http" in log.read_text()), run.output
        (guard,) = run.children()
        run.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert run.wait(58) == 2, run.output
        assert time.monotonic() - began < 58, "not the 60 s that it loads"
        assert eventually(lambda: not alive(guard))
    assert "KeyboardInterrupt" in run.output
    assert "Traceback" not in run.output
