"""Whatever dies in whatever moment: a clear end within seconds, what was measured is reported."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.project import QUICK, ROOT, Started, alive, chat, eventually, models, started
from tests.support.scripted import Reply, Request, ScriptedServer

GRID = ("--llm-contexts=1000,2000", "--llm-concurrency=1,2")
STRICT = ("-W", "error")
SLOW = pytest.mark.slow
CLEAN = ("Traceback", "INTERNALERROR", "ResourceWarning", "Exception ignored")


@contextmanager
def serving(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The simulator as a server of its own, with its address."""
    command = [sys.executable, "-m", "pytest_llmperf.sim", "serve", "rtxpro6k_x4"]
    process = subprocess.Popen(
        [*command, "--speed=10", *(args or ("--port=0",))],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def sabotage(step: str, pid: int, number: int) -> dict[str, str]:
    return {"LLMPERF_SABOTAGE": f"{step} {pid} {number}", "PYTHONPATH": str(ROOT)}


@contextmanager
def running(perf: pytest.Pytester, url: str, *args: str, **env: str) -> Iterator[Started]:
    plugin = ("-p", "tests.e2e.saboteur") if env else ()
    with started(
        perf.path, *plugin, "perf_tests", *GRID, *QUICK, *STRICT, "--llm-url", url, *args, env=env
    ) as run:
        yield run


def outcomes(run: Started) -> dict[str, str]:
    return {cell["cell"]: cell["outcome"] for cell in run.results["cells"]}


# a signal in the moment in which pytest-asyncio closes the test's loop leaves it half closed, and
# Python says so at its end; the loop is not ours
HALF_CLOSED = re.compile(
    r"Exception ignored in: <function BaseEventLoop\.__del__ .*?"
    r"ValueError: Invalid file descriptor: -1",
    re.DOTALL,
)


def assert_clean(run: Started) -> None:
    output = HALF_CLOSED.sub("", run.output)
    for words in CLEAN:
        assert words not in output, run.output


# The server


@pytest.mark.parametrize(
    ("step", "measured"),
    [
        pytest.param("prefill:scout", {0}, marks=SLOW),
        pytest.param("prefill:window", {0, 1}, marks=SLOW),
        pytest.param("decode:drain", {1}, marks=SLOW),
        pytest.param("decode:scout", {1}, marks=SLOW),
        ("decode:ramp", {1}),
        ("decode:window", {1}),
        pytest.param("decode:close", {1, 2}, marks=SLOW),
    ],
)
def test_kill_9_of_the_server(perf: pytest.Pytester, step: str, measured: set[int]) -> None:
    """The cell fails with words, no later cell is tried, the report holds what was measured."""
    with serving() as (server, url):
        env = sabotage(step, server.pid, signal.SIGKILL)
        with running(perf, url, **env) as run:
            assert eventually(lambda: server.poll() is not None), run.output
            died = time.monotonic()
            assert run.wait(60) == 1, run.output
            assert time.monotonic() - died < 30, "not the silence that --llm-stall allows"
    assert_clean(run)
    assert "! llmperf: the server is gone since " in run.output
    assert run.results["finished"] is False
    assert "the server is gone" in run.results["interrupted"]
    *before, last = outcomes(run).values()
    assert set(before) <= {"MEASURED"}
    assert len(before) in measured
    assert last == "INVALID"
    assert run.output.count("is invalid: ") == 2, "once as the failure, once in the summary"
    assert (perf.path / "llmperf-report" / "report.html").exists()


@SLOW
def test_kill_9_of_the_server_while_it_is_asked_what_it_is(perf: pytest.Pytester) -> None:
    """A usage error if it dies before its description is complete, else the first cell's."""
    with serving() as (server, url):
        env = sabotage("connect", server.pid, signal.SIGKILL)
        with running(perf, url, **env) as run:
            assert run.wait() in (1, 4), run.output
    assert_clean(run)
    assert f"{url}" in run.output
    assert "ERROR: llmperf: " in run.output or "is gone since prefill[1000]" in run.output


def test_a_server_that_dies_while_it_loads(perf: pytest.Pytester) -> None:
    """It is not waited for any longer than it lives."""
    faults = ("--port=0", "--loading=30", "--fault=crash@time:8")
    with serving(*faults) as (server, url), running(perf, url) as run:
        assert eventually(lambda: server.poll() is not None)
        assert run.wait(20) == 4
    assert "waiting up to 600 s for the server (HTTP 503: Loading model)" in run.output
    assert f"ERROR: llmperf: nothing listens at {url}" in run.output


def test_a_server_that_loads_is_waited_for(perf: pytest.Pytester) -> None:
    """503 is no error."""
    only = ("-k", "1000 and prefill")
    with serving("--port=0", "--loading=4") as (_, url), running(perf, url, *only) as run:
        assert run.wait() == 0, run.output
    assert "waiting up to 600 s for the server (HTTP 503: Loading model)" in run.output
    assert outcomes(run) == {"prefill[1000]": "MEASURED"}


@SLOW
@pytest.mark.parametrize("fault", ["hang@request:6", "hang@total:400"])
def test_a_server_that_hangs(perf: pytest.Pytester, fault: str) -> None:
    """Silence ends a cell after --llm-stall, and then the run."""
    args = ("--llm-stall=1", "-k", "1000")
    with serving("--port=0", f"--fault={fault}") as (_, url), running(perf, url, *args) as run:
        assert run.wait(90) == 1, run.output
    assert_clean(run)
    assert "! llmperf: the server is gone since " in run.output
    assert "did not answer in time" in run.output or "it has not answered" in run.output


@SLOW
def test_a_server_that_stalls_for_a_while(perf: pytest.Pytester) -> None:
    """The cell fails with its words; the server still answers, so the others are measured. The
    first 2,000 tokens are those of the load before it."""
    stall, args = "--fault=stall:2.5@total:2600", ("--llm-stall=1", "-k", "1000")
    with serving("--port=0", stall) as (_, url), running(perf, url, *args) as run:
        assert run.wait() == 1, run.output
    assert_clean(run)
    assert "stalled: no token for 1 s" in run.output
    assert run.results["finished"] is True
    assert sorted(outcomes(run).values()) == ["INVALID", "MEASURED", "MEASURED"]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"started": 2000.0}, "the server was started anew during * or before: its process is*"),
        ({"version": "2.0"}, "the server was started anew *: its version is 2.0 now, it was 1.0"),
        ({"model": "other"}, "*the server is gone since *: it serves other now, no longer m*"),
        ({"loading": True}, "*the server is gone since *: it answers HTTP 503: Loading model*"),
    ],
)
def test_a_server_that_is_another_one_all_at_once(
    perf: pytest.Pytester, now: dict[str, Any], words: str
) -> None:
    """Start time, version, model or readiness changed in mid-run: seen, and stated."""
    state: dict[str, Any] = {"started": 1000.0, "version": "1.0", "model": "m", "loading": False}

    async def list_models(request: Request, reply: Reply) -> None:
        if state["loading"]:
            await reply.respond(503, {"error": {"message": "Loading model"}})
        else:
            card = {"id": state["model"], "object": "model", "owned_by": "vllm"}
            await reply.respond(200, {"data": [card]})

    async def version(request: Request, reply: Reply) -> None:
        await reply.respond(200, {"version": state["version"]})

    async def metrics(request: Request, reply: Reply) -> None:
        text = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        await reply.respond(200, f"process_start_time_seconds {state['started']}\n{text}")

    async def complete(request: Request, reply: Reply) -> None:
        if state["model"] != "m" or state["loading"]:
            await reply.respond(503, {"error": {"message": "Loading model"}})
            return
        await chat(request, reply)
        if sum(r.path == "/v1/chat/completions" for r in server.requests) >= 5:
            state.update(now)

    routes = {
        "/v1/models": list_models,
        "/version": version,
        "/metrics": metrics,
        "/v1/chat/completions": complete,
    }
    with ScriptedServer(routes) as server:
        result = perf.runpytest("perf_tests", *GRID, "-k=prefill", "--llm-url", server.url)
    gone = "gone" in words
    assert result.ret == int(gone)
    result.stdout.fnmatch_lines([f"*{words}"])
    assert result.parseoutcomes().get("passed", 0) == (0 if gone else 2)


# pytest


@pytest.mark.parametrize(
    ("step", "number", "reported"),
    [
        ("start", signal.SIGTERM, 0),
        pytest.param("start", signal.SIGINT, 0, marks=SLOW),
        ("connect", signal.SIGINT, 0),
        pytest.param("connect", signal.SIGTERM, 0, marks=SLOW),
        pytest.param("prefill:window", signal.SIGTERM, 0, marks=SLOW),
        pytest.param("decode:scout", signal.SIGINT, 1, marks=SLOW),
        pytest.param("decode:ramp", signal.SIGTERM, 1, marks=SLOW),
        ("decode:window", signal.SIGINT, 1),
        ("decode:window", signal.SIGTERM, 1),
        pytest.param("decode:close", signal.SIGTERM, None, marks=SLOW),
    ],
)
def test_an_interrupted_run_ends_in_order(
    perf: pytest.Pytester, step: str, number: int, reported: int | None
) -> None:
    """Ctrl-C and SIGTERM alike: exit 2, a report of what was measured, the simulator ended."""
    env = sabotage(step, 0, number)
    with running(perf, "sim?speed=10", **env) as run:
        assert eventually(run.children)
        (simulator,) = run.children()
        assert run.wait() == 2, run.output
        assert not alive(simulator)
    assert_clean(run)
    assert "! KeyboardInterrupt !" in run.output
    if reported != 0:
        assert run.results["interrupted"] == "interrupted"
        assert run.results["finished"] is False
        assert list(outcomes(run).values()) == ["MEASURED"] * (reported or len(outcomes(run)))
        assert "llmperf-report/report.html" in run.output


def test_sigterm_ends_a_background_job_too(perf: pytest.Pytester) -> None:
    """A shell's background job ignores SIGINT, and SIGTERM must not become one that is ignored."""
    env = sabotage("connect", 0, signal.SIGTERM)
    args = ("-p", "tests.e2e.saboteur", "perf_tests", *GRID, *QUICK, "--llm-url=sim?speed=10")
    with started(perf.path, *args, env=env, sigint=signal.SIG_IGN) as run:
        assert run.wait() == 2, run.output
    assert_clean(run)
    assert "! KeyboardInterrupt !" in run.output


@SLOW
def test_ctrl_c_in_a_terminal_reaches_the_simulator_too(perf: pytest.Pytester) -> None:
    """The whole process group gets the signal; the end is the same."""
    with running(perf, "sim?speed=10") as run:
        assert eventually(lambda: "test_decode.py" in run.output)
        (simulator,) = run.children()
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 2, run.output
        assert eventually(lambda: not alive(simulator), 5)
    assert_clean(run)
    assert run.results["interrupted"] == "interrupted"


@SLOW
@pytest.mark.parametrize("step", ["start", "decode:window"])
def test_kill_9_of_pytest_leaves_no_simulator(perf: pytest.Pytester, step: str) -> None:
    """Nothing can be said any more, but nothing stays behind, and results.json is whole."""
    with running(perf, "sim?speed=10", **sabotage(step, 0, signal.SIGKILL)) as run:
        assert eventually(run.children)
        (simulator,) = run.children()
        assert run.wait() == -signal.SIGKILL
        assert eventually(lambda: not alive(simulator), 8)
    if step != "start":
        assert outcomes(run) == {"prefill[1000]": "MEASURED"}


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_last_reports_are_not_interrupted(perf: pytest.Pytester, number: int) -> None:
    """A signal while they are written comes too late to stop the run."""
    args = ("-k", "1000 and prefill")
    with running(perf, "sim?speed=10", *args, **sabotage("finish", 0, number)) as run:
        assert run.wait() == 0, run.output
    assert run.results["finished"] is True


def test_an_interrupted_run_leaves_no_request_on_the_server(perf: pytest.Pytester) -> None:
    """Connections are closed, so the server can stop generating."""
    with ScriptedServer({"/v1/models": models("m"), "/v1/chat/completions": chat}) as server:
        env = sabotage("decode:window", 0, signal.SIGINT)
        with running(perf, server.url, "-k", "1000", **env) as run:
            assert run.wait() == 2, run.output
        assert server.open_peak >= 1
        assert eventually(lambda: server.open_now == 0, 3)


# The disk


def test_a_full_disk(perf: pytest.Pytester) -> None:
    """Measuring goes on, it is said once, and the exit status is not that of a run in order."""
    perf.makeconftest(
        f"""
        import os
        def full(fd):
            raise OSError({errno.ENOSPC}, "No space left on device")
        os.fsync = full
        """
    )
    with running(perf, "sim?speed=10", "-k", "1000 and not c2") as run:
        assert run.wait() == 1, run.output
    assert_clean(run)
    assert "2 passed" in run.output
    message = "cannot write llmperf-report/results.json: No space left on device; measuring goes on"
    assert run.output.count(message) == 1
    for name in ("results.json", "report.html", "report.md"):
        assert f"{name} was not written (No space left on device); exit status 1" in run.output
    assert list((perf.path / "llmperf-report").iterdir()) == []


@contextmanager
def tiny_disk(folder: Path, kib: int) -> Iterator[None]:
    """A filesystem of so many KiB at this path."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(perf: pytest.Pytester) -> None:
    """No room for the first report: the kernel says so, in whatever call it likes. What was
    measured is in the terminal, and there is neither a half file nor a left-over one."""
    folder = perf.path / "llmperf-report"
    with tiny_disk(folder, kib=4):
        (folder / "filler").write_bytes(bytes(4096))
        with running(perf, "sim?speed=10", "-k", "1000 and not c2") as run:
            assert run.wait() == 1, run.output
        left = {path.name for path in folder.iterdir()}
    assert_clean(run)
    assert left == {"filler"}
    assert "2 passed" in run.output
    assert re.search(r"decode\[1000-c1\].* tok/s", run.output)
    message = "cannot write llmperf-report/results.json: No space left on device; measuring goes on"
    assert run.output.count(message) == 1
    assert "Captured" not in run.output, "said at once, not only where a test's output is shown"
    for name in ("results.json", "report.html", "report.md"):
        assert f"{name} was not written (No space left on device); exit status 1" in run.output


def test_a_disk_that_fills_up_keeps_the_last_whole_results(perf: pytest.Pytester) -> None:
    """There is room for the results of the first cell, and then no more."""
    folder = perf.path / "llmperf-report"
    with tiny_disk(folder, kib=64):
        perf.makeconftest(
            """
            import pathlib
            def pytest_runtest_logreport(report):
                if report.when == "teardown":
                    with pathlib.Path("llmperf-report/filler").open("wb", 0) as file:
                        try:
                            while file.write(bytes(4096)):
                                pass
                        except OSError:
                            pass
            """
        )
        with running(perf, "sim?speed=10", "-k", "1000 and not c2") as run:
            assert run.wait() == 1, run.output
        assert outcomes(run) == {"prefill[1000]": "MEASURED"}
        left = {path.name for path in folder.iterdir()}
    assert_clean(run)
    assert left == {"filler", "results.json"}
    assert "2 passed" in run.output
    assert "report.html was not written (No space left on device); exit status 1" in run.output


def test_a_report_folder_that_cannot_be_made(perf: pytest.Pytester) -> None:
    """A file in its place: the same."""
    (perf.path / "llmperf-report").write_text("mine")
    with running(perf, "sim?speed=10", "-k", "1000 and prefill") as run:
        assert run.wait() == 1, run.output
    assert_clean(run)
    assert "1 passed" in run.output
    assert "results.json was not written (File exists); exit status 1" in run.output


@SLOW
def test_the_lock_of_a_dead_run_holds_nobody_up(perf: pytest.Pytester) -> None:
    """kill -9 of a run frees its server for the next."""
    with serving() as (_, url):
        with running(perf, url, **sabotage("decode:window", 0, signal.SIGKILL)) as run:
            assert run.wait() == -signal.SIGKILL
        with running(perf, url, "-k", "1000 and prefill") as run:
            assert run.wait() == 0, run.output


@SLOW
def test_a_second_run_at_the_same_time_is_refused(perf: pytest.Pytester) -> None:
    """It says who measures; the first run goes on undisturbed."""
    with serving() as (_, url), running(perf, url, "-k", "1000") as first:
        assert eventually(lambda: "cells, compared" in first.output)
        second = perf.runpytest("perf_tests", *GRID, "--llm-url", url)
        assert second.ret == 4
        held = f"*{url} is being measured by process {first.process.pid} in {perf.path}*"
        second.stderr.fnmatch_lines([held])
        assert first.wait() == 0, first.output
