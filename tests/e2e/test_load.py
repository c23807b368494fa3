"""Who generates the load, from the command line to what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.measure import crew, validity
from pytest_llmperf.measure.decode import DecodeCell
from pytest_llmperf.model.result import ClientHealth
from pytest_llmperf.run import session
from tests.e2e.project import QUICK, alive, chat, eventually, models, started
from tests.support.scripted import ScriptedServer

PATH = "/v1/chat/completions"
ARGS = (*QUICK, "--llm-contexts=1000", "--llm-engine=openai")


def serving() -> ScriptedServer:
    return ScriptedServer({"/v1/models": models("m"), PATH: chat})


def decode_cells() -> list[dict[str, Any]]:
    cells = json.loads(Path("llmperf-report/results.json").read_text())["cells"]
    return [cell["measurement"] for cell in cells if cell["cell"].startswith("decode")]


async def without_warm_up(*_: object) -> None:
    """The load before the first cell would tell that one process is not enough."""


def test_a_bound_client_is_measured_again_by_more_processes(
    perf: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so; the cell after begins with them."""

    def bound_alone(health: ClientHealth) -> str | None:
        return "client bound: alone" if health.transport and health.workers == 1 else None

    for module in (crew, validity, session):
        monkeypatch.setattr(module, "client_bound", bound_alone)
    monkeypatch.setattr(crew, "count_cores", lambda: 2)
    monkeypatch.setattr(DecodeCell, "_warm_up", without_warm_up)
    with serving() as server:
        result = perf.runpytest(
            "perf_tests", *ARGS, "--llm-concurrency=2,4", "--llm-url", server.url
        )
    assert result.ret == 0
    first, second = decode_cells()
    assert [cell["client"]["workers"] for cell in (first, second)] == [2, 2]
    again = [w["text"] for w in first["warnings"] if w["code"] == "measured-again"]
    assert again == [
        "an attempt was thrown away: client bound: alone; measured again with 2 load processes"
    ]
    assert not [w for w in second["warnings"] if w["code"] == "measured-again"]


def test_a_load_host_that_cannot_be_had_ends_the_run_before_any_request(
    perf: pytest.Pytester,
) -> None:
    with serving() as server:
        result = perf.runpytest(
            "perf_tests", *ARGS, "--llm-url", server.url, "--llm-load=popen//python=/no/such"
        )
        assert not [r for r in server.requests if r.path == PATH]
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*a load process does not start on this host*"])


def test_ctrl_c_leaves_no_load_process(perf: pytest.Pytester) -> None:
    """It reaches all processes of the terminal at once, in the midst of a window."""
    args = ("perf_tests", *ARGS, "--llm-concurrency=4", "--llm-workers=2", "--llm-duration=60")
    with serving() as server, started(perf.path, *args, "--llm-url", server.url) as run:
        assert eventually(lambda: server.open_now == 4)
        workers = run.children()
        assert len(workers) >= 2
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 2
        assert eventually(lambda: not any(map(alive, workers)), 10)
        assert eventually(lambda: server.open_now == 0, 10)
    assert "Traceback" not in run.output
