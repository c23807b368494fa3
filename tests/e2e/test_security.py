"""Keys stay out of every output; a hostile server gets nowhere."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest

from tests.e2e.project import QUICK, SMALL, chat, models, says, started
from tests.support.scripted import Reply, Request, ScriptedServer, chunk

KEY = "hunter2-correct-horse-battery"
HEADER = "tok3n-staple-in-a-header"
PASSWORD = "passw0rd-in-the-url"
SECRETS = (KEY, HEADER, PASSWORD)
COMPLETIONS = "/v1/chat/completions"


def everything_written(folder: Path) -> dict[str, str]:
    """All files of a project but those the test itself put there."""
    given = {"perf_tests", "key.txt", "conftest.py", "tox.ini", "test_own.py"}
    return {
        str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in given
    }


async def echo(request: Request, reply: Reply) -> None:
    """An error that repeats all it was sent, as a careless proxy does."""
    await reply.respond(500, {"error": {"message": f"I got {dict(request.headers)}"}})


async def echo_in_stream(request: Request, reply: Reply) -> None:
    await reply.start_stream()
    await reply.event(chunk("x", tokens=1))
    await reply.event({"error": {"message": f"I got {dict(request.headers)}"}})
    await reply.end_stream()


async def echo_in_text(request: Request, reply: Reply) -> None:
    """Good answers whose text and reason are the key."""
    key = request.headers["authorization"]
    await reply.start_stream()
    await reply.event(chunk(key, tokens=1))
    await reply.event(chunk(key, tokens=2, finish=key))
    await reply.event("[DONE]")
    await reply.end_stream()


@pytest.mark.parametrize("answer", [echo, echo_in_stream, echo_in_text])
@pytest.mark.parametrize("source", ["option", "environment", "file"])
def test_no_output_of_a_failing_run_holds_a_key(
    perf: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, answer: object
) -> None:
    """Terminal, tracebacks with locals, logs, JUnit, pytest-html, cache, results and reports."""
    args = [f"--llm-header=X-Team: {HEADER}", f"--llm-run-info=launch_command=serve {KEY} now"]
    if source == "option":
        args.append(f"--llm-api-key={KEY}")
    elif source == "environment":
        monkeypatch.setenv("LLMPERF_API_KEY", KEY)
    else:
        (perf.path / "key.txt").write_text(f"{KEY}\n")
        args.append("--llm-api-key-file=key.txt")
    perf.makepyfile(
        test_own="""
        import logging, pytest
        @pytest.mark.asyncio
        async def test_own(llm):
            headers = {"authorization": "Bearer " + llm._run.connection.api_key}
            secret = str(headers)
            print(headers)
            logging.getLogger().error("%s", headers)
            raise RuntimeError(f"refused with {headers}")
        """
    )
    with ScriptedServer({"/v1/models": models("m"), COMPLETIONS: answer}) as server:  # type: ignore[dict-item]
        reports = (
            "--junitxml=junit.xml",
            "--html=pytest.html",
            "--log-file=run.log",
            "-o=log_level=INFO",
        )
        result = perf.runpytest(
            "perf_tests", "test_own.py", "--showlocals", "-rA", "-vv", *reports, *SMALL, *QUICK,
            "--llm-url", server.url, *args,
        )  # fmt: skip
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[-1].headers["x-team"] == HEADER
    assert result.ret == 1
    result.assert_outcomes(failed=3, deselected=1)
    written = everything_written(perf.path)
    del written["run.log"]  # what a test logs is its own
    assert {"junit.xml", "pytest.html", "llmperf-report/results.json"} <= written.keys()
    written["terminal"] = result.stdout.str() + result.stderr.str()
    for name, text in written.items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} is in {name}"
    assert "<redacted>" in written["terminal"]


def test_a_password_in_the_address_is_shown_nowhere(perf: pytest.Pytester) -> None:
    """It is sent as the address says, and no further."""
    with ScriptedServer({"/v1/models": models("m"), COMPLETIONS: echo}) as server:
        url = server.url.replace("http://", f"http://me:{PASSWORD}@")
        result = perf.runpytest("perf_tests", *SMALL, *QUICK, "--llm-url", url)
        assert server.requests[-1].headers["authorization"].startswith("Basic ")
    assert result.ret == 1
    basic = server.requests[-1].headers["authorization"].partition(" ")[2]
    written = everything_written(perf.path)
    written["terminal"] = result.stdout.str() + result.stderr.str()
    for name, text in written.items():
        assert PASSWORD not in text, name
        assert basic not in text, name


def test_a_key_that_the_server_lists_as_its_model(perf: pytest.Pytester) -> None:
    """Even in good answers an echo is taken out."""
    with ScriptedServer({"/v1/models": models(f"model-{KEY}", "other")}) as server:
        result = perf.runpytest(
            "perf_tests", *SMALL, "--llm-url", server.url, f"--llm-api-key={KEY}"
        )
    assert result.ret == 4
    assert KEY not in result.stdout.str() + result.stderr.str()
    result.stderr.fnmatch_lines(["*several models: model-<redacted>, other*"])


def test_a_redirect_of_the_measured_request_does_not_carry_the_key(perf: pytest.Pytester) -> None:
    """The cell fails, naming the address; the other host hears nothing."""
    with ScriptedServer({COMPLETIONS: chat}) as other:
        moved = says(307, "", location=f"{other.url}{COMPLETIONS}")
        with ScriptedServer({"/v1/models": models("m"), COMPLETIONS: moved}) as server:
            args = ("--llm-url", server.url, f"--llm-api-key={KEY}")
            result = perf.runpytest("perf_tests", *SMALL, *QUICK, *args)
        assert other.requests == []
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*redirects to {other.url}*use that address*"])


# A hostile server

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_reports_escape_what_a_server_says(
    perf: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No markup of its gets into the page, no control character into terminal or job log, and no
    line of its own into the log of GitHub Actions."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    async def fail(request: Request, reply: Reply) -> None:
        message = f"{EVIL}{ESCAPE}\n::error::mine\n| a | b |"
        await reply.respond(400, {"error": {"message": message}})

    with ScriptedServer({"/v1/models": models(EVIL), COMPLETIONS: fail}) as server:
        result = perf.runpytest("perf_tests", *SMALL, *QUICK, "--color=no", "--llm-url", server.url)
    assert result.ret == 1
    folder = perf.path / "llmperf-report"
    page = (folder / "report.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
    for text in (result.stdout.str(), page, (folder / "report.md").read_text()):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\n::error::mine" not in text


def test_a_model_name_with_control_characters_is_no_model(perf: pytest.Pytester) -> None:
    """It can neither be shown nor named with --llm-model."""
    with ScriptedServer({"/v1/models": models(f"m{ESCAPE}", "x" * 10_000)}) as server:
        result = perf.runpytest("perf_tests", *SMALL, "--llm-url", server.url)
    assert result.ret == 4
    assert "\x1b]0" not in result.stderr.str()
    result.stderr.fnmatch_lines(["*the server serves no model*"])


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "..\\outside", "a/b/c"])
def test_a_server_cannot_choose_where_files_go(perf: pytest.Pytester, name: str) -> None:
    """A model's name is never a path."""
    before = {p.name for p in perf.path.parent.iterdir()}
    with ScriptedServer({"/v1/models": models(name), COMPLETIONS: chat}) as server:
        perf.runpytest("perf_tests", *SMALL, *QUICK, "-k", "prefill", "--llm-url", server.url)
    folders = {Path(file).parts[0] for file in everything_written(perf.path)}
    assert folders <= {"llmperf-report", ".pytest_cache"}
    assert {p.name for p in perf.path.parent.iterdir()} == before


async def endless_line(request: Request, reply: Reply) -> None:
    """Up to a gigabyte without a line end."""
    await reply.start_stream()
    for _ in range(1024):
        await reply.send(b"x" * 2**20)


async def endless_event(request: Request, reply: Reply) -> None:
    """Up to a gigabyte of lines that never become an event."""
    await reply.start_stream()
    for _ in range(1024):
        await reply.send(b"data: " + b"x" * 2**20 + b"\n")


async def endless_header(request: Request, reply: Reply) -> None:
    await reply.raw(b"HTTP/1.1 200 OK\r\nX-A: ")
    for _ in range(1024):
        await reply.raw(b"x" * 2**20)


async def endless_headers(request: Request, reply: Reply) -> None:
    await reply.raw(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1024):
        await reply.raw(b"X-A: y\r\n" * 2**17)


async def endless_error(request: Request, reply: Reply) -> None:
    await reply.raw(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(1024):
        await reply.send(b"x" * 2**20)


async def zipped(request: Request, reply: Reply) -> None:
    """A stream in a coding nobody asked for is not unpacked."""
    await reply.raw(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 30\r\n\r\n"
        + b"\x1f\x8b" * 15
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (endless_line, "an event of more than * MiB"),
        (endless_event, "an event of more than * MiB"),
        (endless_header, "more than 128 KiB of header lines"),
        (endless_headers, "more than 128 KiB of header lines"),
        (endless_error, "HTTP 500"),
        (zipped, "not an event stream"),
    ],
)
def test_an_answer_that_would_fill_the_memory(
    perf: pytest.Pytester, answer: object, words: str
) -> None:
    """A gigabyte is offered; the cell fails with words, and memory stays within 100 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ScriptedServer({"/v1/models": models("m"), COMPLETIONS: answer}) as server:  # type: ignore[dict-item]
        args = ("-k", "prefill", "--llm-url", server.url)
        result = perf.runpytest("perf_tests", *SMALL, *QUICK, *args)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*is invalid: *{words}*"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_a_metrics_page_without_end(perf: pytest.Pytester) -> None:
    """Given up at 16 MiB, once; the cell is measured all the same."""

    async def list_models(request: Request, reply: Reply) -> None:
        await reply.respond(200, {"data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})

    async def flood(request: Request, reply: Reply) -> None:
        await reply.start_stream("text/plain")
        for i in range(1024):
            await reply.send(b'vllm:num_requests_running{a="%d"} 1\n' % i * 2**15)

    routes = {"/v1/models": list_models, "/metrics": flood, COMPLETIONS: chat}
    with ScriptedServer(routes) as server:
        args = ("-k", "prefill", "--llm-url", server.url)
        result = perf.runpytest("perf_tests", *SMALL, *QUICK, *args)
        assert sum(request.path == "/metrics" for request in server.requests) <= 3
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*no metrics: *more than 16 MiB*"])


def test_results_never_hold_what_json_forbids(perf: pytest.Pytester) -> None:
    """Whatever numbers a server sends, results.json is strict JSON."""

    async def odd(request: Request, reply: Reply) -> None:
        await reply.start_stream()
        event = json.dumps(chunk("x", tokens=1, finish="length")).replace(
            '"prompt_tokens": 10', '"prompt_tokens": NaN'
        )
        await reply.send(f"data: {event}\n\ndata: [DONE]\n\n".encode())
        await reply.end_stream()

    with ScriptedServer({"/v1/models": models("m"), COMPLETIONS: odd}) as server:
        perf.runpytest("perf_tests", *SMALL, *QUICK, "-k", "prefill", "--llm-url", server.url)

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    text = (perf.path / "llmperf-report" / "results.json").read_text()
    json.loads(text, parse_constant=refuse)


def test_the_key_is_on_no_command_line(perf: pytest.Pytester) -> None:
    """The simulator's process gets what it needs through a pipe: ps shows nothing."""
    args = (*SMALL, *QUICK, "--llm-url", f"sim?speed=10&api_key={KEY}")
    with started(perf.path, "perf_tests", *args, env={"LLMPERF_API_KEY": KEY}) as run:
        seen = set()
        while run.process.poll() is None:
            for child in run.children():
                seen.add(Path(f"/proc/{child}/cmdline").read_bytes())
            time.sleep(0.01)
        assert run.wait() == 0, run.output
    # for a moment after the fork it is a copy of pytest, whose command line is the user's own
    (simulator,) = [command for command in seen if b"pytest_llmperf.sim" in command]
    assert KEY.encode() not in simulator
    assert KEY not in run.output
