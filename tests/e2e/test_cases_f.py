"""Cases F: failures during a run, from the server's bytes to the exit status and the reports."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.metrics import METRICS
from tests.e2e.project import QUICK, ROOT, SMALL, chat, eventually, models, started
from tests.support.scripted import Handler, Reply, Request, ScriptedServer, chunk

PATH = "/v1/chat/completions"
PLAIN = (*SMALL, *QUICK, "--llm-engine=openai")
MEASURED_TOKENS = 512
"""``QUICK``; scouts and prefills ask for less."""


def serving(handler: Handler) -> ScriptedServer:
    return ScriptedServer({"/v1/models": models("m"), PATH: handler})


def measured_only(fault: Handler) -> Handler:
    """A good server whose measured streams meet a fault."""

    async def answer(request: Request, reply: Reply) -> None:
        good = request.json["max_tokens"] < MEASURED_TOKENS
        await (chat if good else fault)(request, reply)

    return answer


def run(perf: pytest.Pytester, handler: Handler, *args: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, terminal and the cells by name."""
    with serving(handler) as server:
        result = perf.runpytest("perf_tests", *PLAIN, "--llm-url", server.url, *args)
    results = json.loads(Path("llmperf-report/results.json").read_text())
    return int(result.ret), result.stdout.str(), {cell["cell"]: cell for cell in results["cells"]}


def numbers(cell: dict[str, Any]) -> dict[str, float]:
    """What a cell says it measured, in any attempt."""
    attempts = [cell["measurement"], *cell["attempts"]]
    return {n: v for a in attempts for n in METRICS if (v := a.get(n)) is not None}


def reports() -> list[str]:
    return [Path("llmperf-report", name).read_text() for name in ("report.html", "report.md")]


def one_of_two_fails() -> Handler:
    """Every other measured stream ends after 50 tokens, in an error inside of HTTP 200."""
    count = 0

    async def fault(request: Request, reply: Reply) -> None:
        nonlocal count
        count += 1
        if count % 2:
            await chat(request, reply)
            return
        await reply.start_stream()
        for i in range(1, 51):
            await reply.event(chunk(f"w{i} ", tokens=i))
            await asyncio.sleep(0.002)
        await reply.event({"error": {"message": "upstream died", "code": 502}})
        await reply.event("[DONE]")
        await reply.end_stream()

    return measured_only(fault)


def test_f1_a_failed_request_is_averaged_into_nothing(perf: pytest.Pytester) -> None:
    """One of two streams fails early: fewer tokens, and no number made of them."""
    status, _, cells = run(perf, one_of_two_fails(), "--llm-concurrency=2")
    assert status == 1
    assert numbers(cells["prefill[1000]"]), "the cell before is none the worse for it"
    assert cells["decode[1000-c2]"]["outcome"] == "INVALID"
    assert numbers(cells["decode[1000-c2]"]) == {}


async def refuse(request: Request, reply: Reply) -> None:
    await reply.respond(503, {"error": {"message": "overloaded"}})


@pytest.mark.parametrize("handler", [refuse, measured_only(refuse)], ids=["all", "measured"])
def test_f2_a_run_of_failures_is_no_number_and_not_green(
    perf: pytest.Pytester, handler: Handler
) -> None:
    """Fast refusals are not speed, whether all requests meet them or the measured ones only."""
    status, terminal, cells = run(perf, handler, "-k", "decode")
    assert status == 1
    assert cells["decode[1000-c1]"]["outcome"] == "INVALID"
    assert numbers(cells["decode[1000-c1]"]) == {}
    assert "HTTP 503: overloaded" in terminal
    for text in (terminal, *reports()):
        assert "INVALID" in text
        assert "MEASURED" not in text


def test_f3_how_many_requests_failed_is_shown(perf: pytest.Pytester) -> None:
    """In the terminal, in JSON and in every report."""
    _, terminal, cells = run(perf, one_of_two_fails(), "-k", "decode", "--llm-concurrency=2")
    reason = cells["decode[1000-c2]"]["measurement"]["reason"]
    assert reason == "1 of 2 requests failed: upstream died"
    for text in (terminal, *reports()):
        assert reason in text


async def never_a_token(request: Request, reply: Reply) -> None:
    """Comments hold off every limit on silence."""
    await reply.start_stream()
    while not await reply.client_gone():
        await reply.send(b": thinking\n\n")
        await asyncio.sleep(0.05)


def test_f7_a_cell_that_hangs_ends_at_its_deadline(
    perf: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it hangs in; each cell has a deadline of its own, so the run ends too, and nothing
    of it stays on the server."""
    monkeypatch.setattr(Measurer, "_limit", lambda *_: 1.0)
    began = time.monotonic()
    with serving(never_a_token) as server:
        result = perf.runpytest("perf_tests", *PLAIN, "--llm-url", server.url)
        assert eventually(lambda: server.open_now == 0, 5)
    assert time.monotonic() - began < 30
    assert result.ret == 1
    cells = json.loads(Path("llmperf-report/results.json").read_text())["cells"]
    assert [cell["cell"] for cell in cells] == ["prefill[1000]", "decode[1000-c1]"]
    for cell in cells:
        assert "did not end within its deadline" in cell["measurement"]["reason"]
        assert numbers(cell) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_f8_an_interrupted_run_keeps_what_was_measured(perf: pytest.Pytester, number: int) -> None:
    """Each finished cell is on the disk before the next one starts; where there is time, in the
    reports and in the terminal too."""
    env = {"LLMPERF_SABOTAGE": f"decode:window 0 {int(number)}", "PYTHONPATH": str(ROOT)}
    args = ("-p", "tests.e2e.saboteur", "perf_tests", *PLAIN)
    with (
        serving(chat) as server,
        started(perf.path, *args, "--llm-url", server.url, env=env) as run,
    ):
        status = run.wait()
    assert status == (2 if number == signal.SIGINT else -number)
    assert run.results["finished"] is False
    (kept,) = run.results["cells"]
    assert kept["cell"] == "prefill[1000]"
    assert kept["measurement"]["prefill_tok_s"] > 0
    if number == signal.SIGINT:
        speed = kept["measurement"]["prefill_tok_s"]
        for text in (run.output, *reports()):
            assert f"{speed:,.0f}" in text or f"{speed:,.1f}" in text
