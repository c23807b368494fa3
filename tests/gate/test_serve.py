"""``--llm-serve``: a server that lives exactly as long as its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.client.loop import run
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.server import starter
from pytest_llmperf.server.serve import ServerProcess, place, split
from pytest_llmperf.sim import parse_spec
from tests.e2e.project import alive, eventually, started
from tests.gate.project import GRID, SHORT, words

PYTHON = sys.executable
SIM = f"{PYTHON} -m pytest_llmperf.sim serve --port {{port}} --speed 4"
FREE = "http://127.0.0.1:9"
"""The discard port: nothing listens there."""


@pytest.mark.parametrize(
    ("command", "url", "expected"),
    [
        ("vllm serve m", None, "http://127.0.0.1:8000"),
        ("env A=1 llama-server -m x.gguf", None, "http://127.0.0.1:8080"),
        ("python3 serve.py --port=1234", None, "http://127.0.0.1:1234"),
        ("vllm serve m --port 9000", None, "http://127.0.0.1:9000"),
        ("vllm serve m", "http://box:7000", "http://box:7000"),
    ],
)
def test_where_a_command_will_listen(
    command: str, url: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own port, or where its engine listens by default; --llm-url overrides."""
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert place(command, url) == (command, expected)


def test_a_free_port_is_filled_in() -> None:
    command, url = place("python3 serve.py --port {port}", None)
    assert command == f"python3 serve.py --port {url.rpartition(':')[2]}"
    assert place("python3 x {port}", "http://box:7000")[0] == "python3 x 7000"


def test_assignments_before_a_command_are_kept() -> None:
    """As a shell would; json in quotes stays one word."""
    assert split("CUDA_VISIBLE_DEVICES=1 python3 -c '{\"a\": 1}'") == [
        "env", "CUDA_VISIBLE_DEVICES=1", "python3", "-c", '{"a": 1}',
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="empty"):
        split("A=1")


def test_a_server_that_dies_is_seen_at_once_with_its_last_words(tmp_path: Path) -> None:
    """Not after a timeout; the key it printed is not repeated."""
    code = "print('out of memory, --api-key sk-abcdefgh12345'); raise SystemExit(3)"
    server = ServerProcess(f'{PYTHON} -c "{code}"', FREE, tmp_path / "server.log")

    async def forever() -> None:
        import asyncio

        await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(ServerUnusable, match="exit code 3") as caught:
        run(server.while_alive(forever()))
    assert time.monotonic() - began < 50
    assert "out of memory" in str(caught.value)
    assert "sk-abcdefgh" not in str(caught.value)
    server.close()


def test_its_last_words_hold_no_key_and_steer_no_terminal(tmp_path: Path) -> None:
    """Whatever the key looks like; colours go, the indentation of a traceback stays."""
    code = (
        "print(['zebra-42']); print(chr(27) + '[31m  red' + chr(27) + '[0m' + chr(7) + '!');"
        "print('x' * 5000)"
    )
    server = ServerProcess(f'{PYTHON} -c "{code}"', FREE, tmp_path / "server.log", ["zebra-42"])
    while server.exit_code is None:
        time.sleep(0.01)
    first, second, third = server.last_words().splitlines()[-3:]
    server.close()
    assert (first, second) == ("  ['<redacted>']", "    red !")
    assert len(third) < 1000


FAMILY = """
import os, signal, subprocess, sys, time
{trap}
child = subprocess.Popen([sys.executable, "-c", "{trap}; import time; time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "trap", ["pass", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
)
def test_its_whole_process_group_ends(tmp_path: Path, trap: str) -> None:
    """Children too, also those that ignore SIGTERM."""
    script = tmp_path / "server.py"
    script.write_text(FAMILY.format(trap=trap))
    server = ServerProcess(f"{PYTHON} {script}", FREE, tmp_path / "log", grace_s=0.5)
    assert eventually(lambda: len((tmp_path / "log").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "log").read_text().split()]
    assert all(map(alive, pids))
    server.close()
    assert eventually(lambda: not any(map(alive, pids)), 3)
    server.close()


def test_kill_9_of_pytest_leaves_no_server(perf: pytest.Pytester) -> None:
    """The pipe closes, however the run ends."""
    with started(perf.path, "perf_tests", f"--llm-serve={SIM}", *GRID, "--llm-duration=30") as run:
        log = perf.path / "llmperf-report/server.log"
        assert eventually(lambda: log.is_file() and "on http" in log.read_text(), 20)
        assert eventually(lambda: "cells" in run.output, 20)
        (guard,) = run.children()
        server = int(Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[0])
        assert alive(server)
        os.kill(run.process.pid, signal.SIGKILL)
        assert eventually(lambda: not alive(server) and not alive(guard), 10)


def test_a_port_in_use_is_refused(perf: pytest.Pytester, sim: str) -> None:
    """Else the run would measure whatever listens there."""
    port = sim.rpartition(":")[2]
    command = SIM.replace("{port}", port)
    result = perf.runpytest("perf_tests", f"--llm-serve={command}", *GRID)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*something listens at * already*"])


def test_a_server_that_cannot_start_is_a_usage_error(perf: pytest.Pytester) -> None:
    """With its last words, before any cell."""
    command = f"{PYTHON} -m pytest_llmperf.sim serve --port {{port}} nonesuch"
    result = perf.runpytest("perf_tests", f"--llm-serve={command}", *GRID)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*the server ended with exit code 4*server.log*"])
    assert "nonesuch" in result.stderr.str()


def test_several_runs_are_one_command(perf: pytest.Pytester) -> None:
    """A baseline with noise between runs: a server start each, every run added, facts stored."""
    command = f"{SIM} --noise 0.05 --seed {{run}} --api-key sk-abcdefgh12345"
    result = perf.runpytest(
        "perf_tests", f"--llm-serve={command}", "--llm-runs=3", "--hardware=new",
        "--llm-contexts=512", "--llm-concurrency=1", "--update-baselines", *SHORT,
        "--llm-api-key=sk-abcdefgh12345", "-v", "-p", "no:randomly",
    )  # fmt: skip
    assert result.ret == 0, words(result)
    result.assert_outcomes(passed=6, deselected=3)
    order = [line.split("::")[1].split()[0] for line in result.outlines if "] PASS" in line
             or "UPDATED perf_tests" in line or "PASSED UPDATED" in line]  # fmt: skip
    assert order == [
        f"test_{name}-run{n}]" for n in (1, 2, 3) for name in ("prefill[512", "decode[512-c1")
    ]
    baseline = load(perf.path / "baselines/new.yaml")
    assert len(baseline.runs) == 3
    rates = baseline.cells["prefill[512]"].values("prefill_tok_s")
    assert len(set(rates)) == 3
    for number, facts in enumerate(baseline.runs.values(), start=1):
        assert facts.launch_command is not None
        assert f"--seed {number}" in facts.launch_command
        assert facts.info == {"server_log": f"llmperf-report/server-run{number}.log"}
    everything = [path for path in perf.path.rglob("*") if path.is_file()]
    assert not [path for path in everything if b"sk-abcdefgh" in path.read_bytes()]
    assert {path.name for path in (perf.path / "llmperf-report").glob("results*")} == {
        "results.json",
        *(f"results-run{n}.json" for n in (1, 2, 3)),
    }
    _check_reports(perf.path / "llmperf-report")
    _check_summary(result.outlines)


def _check_reports(folder: Path) -> None:
    """Under the plain names: the last run, and all runs side by side on the page."""
    assert (folder / "results.json").read_text() == (folder / "results-run3.json").read_text()
    assert (folder / "report.md").read_text() == (folder / "report-run3.md").read_text()
    assert "<title>3 runs: run 1, run 2, run 3" in (folder / "report.html").read_text()


def _check_summary(lines: list[str]) -> None:
    """A whole matrix once, under the last of three headings, and one difference of the file."""
    heads = [i for i, line in enumerate(lines) if "= llmperf: run" in line]
    assert [lines[i].strip("= ") for i in heads] == [f"llmperf: run {n} of 3" for n in (1, 2, 3)]
    assert [i > heads[2] for i, line in enumerate(lines) if line.startswith("Sustained")] == [True]
    assert [line for line in lines if line.startswith("--- ")] == ["--- /dev/null"]
    assert lines.count("baselines/new.yaml updated") == 1
    assert sum("llmperf: 2 cells, compared with nothing, about" in line for line in lines) == 3


def test_no_two_starts_of_a_session_draw_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--llm-url sim with --llm-runs: each run and each further start is one of its own, of the
    seed that the user named."""
    specs: list[str] = []

    def note(spec: str, **_: object) -> SimpleNamespace:
        specs.append(spec)
        return SimpleNamespace(url="http://127.0.0.1:9")

    monkeypatch.setattr(starter, "start_sim", note)
    for each in (1, 2, 3):
        simulator = starter.SimStarter("sim?seed=7", None, tmp_path, each, runs=3)
        for number in (1, 2):
            simulator.start(number)
    assert specs[0] == "sim?seed=7"
    found = [parse_spec(spec) for spec in specs]
    assert {spec.seed for spec in found} == {7}
    assert sorted(spec.start for spec in found) == [1, 2, 3, 4, 5, 6]


def test_the_guard_passes_the_exit_code_on(tmp_path: Path) -> None:
    """As a shell does: 128 and the signal for one that was killed."""
    for code, expected in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)):
        guard = subprocess.Popen(
            [PYTHON, "-m", "pytest_llmperf.server.guard", "5", PYTHON, "-c", code],
            stdin=subprocess.PIPE,
        )
        assert guard.wait(10) == expected
        assert guard.stdin is not None
        guard.stdin.close()
