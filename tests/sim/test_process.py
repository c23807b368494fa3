"""The simulator's process: it starts fast, says what is wrong, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.sim.process import start
from tests.sim.serving import FAST, chat, client, complete, serving, wait_for


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_answers_as_soon_as_it_has_started() -> None:
    with serving(FAST) as (process, http):
        assert process.url.startswith("http://127.0.0.1:")
        assert process.profile == "rtxpro6k_x4"
        assert http.get("/health").status_code == 200


def test_a_plain_spec_takes_the_hardware_of_the_caller() -> None:
    with start("sim?speed=100", hardware="h200nvl_x2") as process:
        assert process.profile == "h200nvl_x2"
    with start("sim:rtxpro6k_x4", hardware="h200nvl_x2") as process:
        assert process.profile == "rtxpro6k_x4"


def test_the_users_own_profile_comes_first(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    shipped = Path(__file__).parents[2] / "baselines" / "h200nvl_x2.yaml"
    mine.write_text(shipped.read_text().replace("profile: h200nvl_x2", "profile: mine"))
    with start("sim:mine", baselines=tmp_path) as process:
        assert process.profile == "mine"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sim:nowhere", "h200nvl_x2, rtxpro6k_x4"),
        ("sim?max_model_len=4096&kv_tokens=16", "KV tokens"),
        ("sim?nonsense=1", "no parameter 'nonsense'"),
    ],
)
def test_what_cannot_be_simulated_is_a_config_error(spec: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(spec)
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_close_ends_it_and_may_be_repeated() -> None:
    process = start(FAST)
    process.close()
    assert process.exit_code == 0
    assert not alive(process.pid)
    process.close()


def test_close_ends_it_in_the_middle_of_a_stream() -> None:
    with serving(f"{FAST}decode_speed=0.01") as (process, http):
        with http.stream("POST", "/v1/chat/completions", json=chat(4000)) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.close()
        assert not alive(process.pid)


def test_a_hung_server_is_ended_too() -> None:
    with serving(f"{FAST}fault=hang@request:1") as (process, http):
        with pytest.raises(httpx.TimeoutException):
            http.post("/v1/chat/completions", json=chat(), timeout=0.3)
        process.close()
        assert not alive(process.pid)


def test_the_key_is_not_on_the_command_line() -> None:
    """Any user of the machine can read a command line."""
    with start(f"{FAST}api_key=hush-hush") as process:
        assert b"hush-hush" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_it_dies_with_its_parent() -> None:
    """kill -9 of the parent leaves no process, also when a child of the parent lives on and holds
    its pipes open."""
    code = (
        "import os, time\n"
        "from pytest_llmperf.sim.process import start\n"
        f"process = start({FAST!r})\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(process.pid, child, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        server, child = map(int, parent.stdout.readline().split())
        assert alive(server)
        parent.kill()
        parent.wait()
        try:
            assert wait_for(lambda: not alive(server), 10)
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_it_serves_from_the_shell() -> None:
    """Another client can be pointed at it; Ctrl-C ends it."""
    command = [sys.executable, "-m", "pytest_llmperf.sim", "serve", "h200nvl_x2?speed=100"]
    command += ["--port", "0", "--slots", "3", "--fault", "http:429@request:2"]
    shell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    with shell.stdout:
        url = shell.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, trust_env=False) as http:
            assert len(complete(http, chat(2))) > 2
            assert http.post("/v1/chat/completions", json=chat()).status_code == 429
        shell.send_signal(signal.SIGINT)
        assert shell.wait(10) in (0, -signal.SIGINT)


def test_the_shell_says_what_is_wrong() -> None:
    command = [sys.executable, "-m", "pytest_llmperf.sim", "serve", "--speed", "fast"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4
    assert "speed=fast" in done.stderr


def test_residuals_are_printed() -> None:
    """The model beside every figure of its profile, with the corrections."""
    command = [sys.executable, "-m", "pytest_llmperf.sim", "residuals", "h200nvl_x2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("decode[8K-c1] ")]
    assert {row.split()[1] for row in rows} >= {"total_tok_s", "itl_ms", "ttft_ms"}
    assert "15 cells over capacity" in done.stdout


def test_loading_answers_503_for_so_long() -> None:
    with start(f"{FAST}loading=0.7") as process, client(process) as http:
        began = time.monotonic()
        answer = http.get("/v1/models")
        assert answer.status_code == 503
        assert "Loading" in answer.json()["error"]["message"]
        assert wait_for(lambda: http.get("/v1/models").status_code == 200)
        assert time.monotonic() - began > 0.3
