"""Whatever cannot be measured is said once, with the next step: a usage error before any load."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme

import pytest_llmperf.server.reach as reach
from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.server.lock import ServerLock
from tests.e2e.project import QUICK, ROOT, SMALL, chat, models, says
from tests.support.scripted import Handler, ScriptedServer

SHIPPED = ROOT / "baselines" / "rtxpro6k_x4.yaml"
NOT_OPENAI = "*does not answer /v1/models like an OpenAI server*check --llm-url*"


def refused(perf: pytest.Pytester, *args: str, says: str) -> None:
    """Exit 4, one message, no test run, no traceback, no report."""
    result = perf.runpytest("perf_tests", *SMALL, *args)
    text = result.stderr.str()
    assert result.ret == 4, result.stdout.str() + text
    assert text.count("ERROR: llmperf:") == 1
    result.stderr.fnmatch_lines([f"ERROR: llmperf: {says}"])
    assert "Traceback" not in text + result.stdout.str()
    assert "INTERNALERROR" not in text + result.stdout.str()
    assert result.parseoutcomes().keys() <= {"warnings", "deselected"}
    assert not (perf.path / "llmperf-report").exists()


@contextmanager
def raw_server(answer: bytes, forever: bool = False) -> Iterator[str]:
    """Says these bytes to whoever connects, then nothing; or says them over and over."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        try:
            connection.sendall(answer)
            while forever:
                connection.sendall(answer)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in held:
            connection.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for a plain call instead of the user's 30."""
    monkeypatch.setattr(reach, "ServerApi", partial(ServerApi, timeout_s=0.5))


# The address


def test_no_url_at_all(perf: pytest.Pytester) -> None:
    """Both ways to give one are shown."""
    refused(perf, says="no server to measure. Give one:")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gpu1:8000", "--llm-url: 'gpu1:8000' is not a server address; write http://host:port*"),
        ("ftp://gpu1", "--llm-url: 'ftp://gpu1' is not a server address*"),
        ("http://", "--llm-url: give an address such as http://gpu1:8000*"),
        ("http://gpu1/v1?key=sesame", "--llm-url: leave out what follows the '?'*"),
        ("http://gpu1:port", "--llm-url: *give an address such as http://gpu1:8000*"),
        ("http://no-such-host.invalid:8000", "no host is named 'no-such-host.invalid'*"),
        ("sim:nonesuch", "*nonesuch*h200nvl_x2, rtxpro6k_x4*"),
        ("sim?sped=2", "*no parameter 'sped'; there are *speed*"),
        ("sim?speed=fast", "*speed=fast*"),
    ],
)
def test_an_address_that_leads_nowhere(perf: pytest.Pytester, url: str, message: str) -> None:
    """Named, with how an address looks."""
    refused(perf, "--llm-url", url, says=message)


def test_a_refused_connection_is_an_error_at_once(perf: pytest.Pytester) -> None:
    """And --llm-wait is offered."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    url = f"http://127.0.0.1:{port}"
    refused(perf, "--llm-url", url, says=f"nothing listens at {url}; start the server, or wait*")
    assert time.monotonic() - began < 25


def test_waiting_for_a_server_that_never_comes_ends(perf: pytest.Pytester) -> None:
    """--llm-wait is a bound."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    refused(perf, "--llm-url", url, "--llm-wait=0.5", says=f"nothing listens at {url}*")
    assert 0.5 < time.monotonic() - began < 60


def test_a_host_that_swallows_packets(perf: pytest.Pytester, impatient: None) -> None:
    """A full backlog drops connections like a firewall does; the wait is bounded."""
    with socket.socket() as deaf, socket.socket() as one, socket.socket() as two:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (one, two):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        refused(perf, "--llm-url", url, says=f"{url} did not answer in time*")


# TLS


@contextmanager
def tls_server(authority: trustme.CA, routes: dict[str, Handler]) -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ScriptedServer(routes, ssl=context) as server:
        yield server


def test_a_certificate_nobody_vouches_for(perf: pytest.Pytester) -> None:
    """Refused, naming both remedies; the key is never sent."""
    authority = trustme.CA()
    with tls_server(authority, {"/v1/models": models("m")}) as server:
        url = server.url
        refused(
            perf, "--llm-url", url, says=f"{url}: its certificate is not trusted*--llm-ca FILE*"
        )
        assert server.requests == []


def test_the_remedies_for_an_untrusted_certificate_work(perf: pytest.Pytester) -> None:
    """--llm-ca and --llm-insecure get as far as the next complaint."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(perf.path / "ca.pem"))
    with tls_server(authority, {"/v1/models": models("a", "b")}) as server:
        for remedy in ("--llm-ca=ca.pem", "--llm-insecure"):
            refused(perf, "--llm-url", server.url, remedy, says="the server serves several models*")


def test_https_to_a_server_of_plain_http(perf: pytest.Pytester) -> None:
    with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        url = address.replace("http:", "https:")
        says = f"{url}: the server does not speak TLS; did you mean {address}[?]"
        refused(perf, "--llm-url", url, says=says)


def test_http_to_a_server_of_tls(perf: pytest.Pytester) -> None:
    with tls_server(trustme.CA(), {"/v1/models": models("m")}) as server:
        url = server.url.replace("https:", "http:")
        refused(perf, "--llm-url", url, says="*https://*")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used(perf: pytest.Pytester, content: str | None) -> None:
    if content is not None:
        (perf.path / "ca.pem").write_text(content)
    refused(perf, "--llm-url=https://127.0.0.1:1", "--llm-ca=ca.pem", says="*ca.pem*")


# Key and model


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_the_server_does_not_take(perf: pytest.Pytester, status: int) -> None:
    """The server's words, and where a key comes from; never the key."""
    answer = says(status, {"error": {"message": "Incorrect API key provided: sk-wrong-key-1234"}})
    with ScriptedServer({"/v1/models": answer}) as server:
        key = "--llm-api-key=sk-wrong-key-1234"
        refused(perf, "--llm-url", server.url, key, says="the server wants a key*LLMPERF_API_KEY*")


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe"])
def test_a_key_file_that_holds_no_key(perf: pytest.Pytester, content: bytes | None) -> None:
    """Missing, empty, or more than a key: said before the server is asked without one."""
    if content is not None:
        (perf.path / "key").write_bytes(content)
    with ScriptedServer({"/v1/models": models("m")}) as server:
        refused(perf, "--llm-url", server.url, "--llm-api-key-file=key", says="--llm-api-key*key*")
        assert server.requests == []


def test_a_model_that_is_not_served(perf: pytest.Pytester) -> None:
    with ScriptedServer({"/v1/models": models("qwen3-8b", "gemma-3-4b")}) as server:
        args = ("--llm-url", server.url, "--llm-model=qwen3-8")
        refused(perf, *args, says="the server does not serve 'qwen3-8'; did you mean qwen3-8b?*")


def test_several_models_and_none_named(perf: pytest.Pytester) -> None:
    with ScriptedServer({"/v1/models": models("qwen3-8b", "gemma-3-4b")}) as server:
        message = "the server serves several models: qwen3-8b, gemma-3-4b*"
        refused(perf, "--llm-url", server.url, says=message)


def test_no_model_loaded(perf: pytest.Pytester) -> None:
    with ScriptedServer({"/v1/models": models()}) as server:
        refused(perf, "--llm-url", server.url, says="the server serves no model: load one first*")


def test_an_engine_nobody_knows(perf: pytest.Pytester) -> None:
    with ScriptedServer({"/v1/models": models("m")}) as server:
        args = ("--llm-url", server.url, "--llm-engine=vlm")
        refused(perf, *args, says="--llm-engine: 'vlm' is none of vllm*")


# Not an OpenAI server


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, "<html><h1>404 Not Found</h1><hr>nginx</html>", "text/html"),
        (200, "<html><title>Login</title>", "text/html"),
        (200, '{"hello": "world"}', "application/json"),
        (200, '{"data": {"id": "m"}}', "application/json"),
        (200, "[1, 2, 3]", "application/json"),
        (200, "", "application/json"),
        (200, "NaN", "application/json"),
        (500, '{"detail": "Internal Server Error"}', "application/json"),
        (405, "", "text/plain"),
    ],
)
def test_a_web_server_of_another_kind(
    perf: pytest.Pytester, status: int, body: str, kind: str
) -> None:
    """Its status and words, and what --llm-url should be."""
    answer = says(status, body, content_type=kind)
    with ScriptedServer({"/v1/models": answer}) as server:
        refused(perf, "--llm-url", server.url, says=NOT_OPENAI)


def test_a_redirect_elsewhere_is_not_followed(perf: pytest.Pytester) -> None:
    """The other host gets neither a request nor the key; its address is named."""
    with ScriptedServer({"/v1/models": models("m")}) as other:
        moved = says(307, "", location=f"{other.url}/v1/models")
        with ScriptedServer({"/v1/models": moved}) as server:
            refused(perf, "--llm-url", server.url, says="*redirects to http://127.0.0.1*")
        assert other.requests == []


@pytest.mark.parametrize(
    ("answer", "forever", "message"),
    [
        (b"", False, "*did not answer in time*"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, "*did not answer in time*check host and port*"),
        (b"\x00\xff\x15\x03\x01" * 50, False, "*does not speak HTTP*"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", False, "*did not answer in time*"),
        (b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 2**20, True, "*does not speak HTTP*"),
        (b"x" * 2**20, True, "*does not speak HTTP*"),
    ],
    ids=["silent", "ssh", "binary", "half an answer", "endless header", "endless line"],
)
def test_a_tcp_server_that_speaks_something_else(
    perf: pytest.Pytester, impatient: None, answer: bytes, forever: bool, message: str
) -> None:
    """Bounded in time and memory."""
    began = time.monotonic()
    with raw_server(answer, forever) as url:
        refused(perf, "--llm-url", url, says=message)
    assert time.monotonic() - began < 28, "not the user's 30 s"


def test_an_answer_without_end(perf: pytest.Pytester) -> None:
    """Cut off at 16 MiB."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"a" * 2**20 + b"\r\n"
    with raw_server(head + chunk * 40) as url:
        refused(perf, "--llm-url", url, says="*answered /* with more than 16 MiB*")


def test_a_compressed_answer_is_not_unpacked(perf: pytest.Pytester) -> None:
    """No compression was asked for, so a bomb stays packed."""
    answer = says(200, b"\x1f\x8b" + b"x" * 100, content_encoding="gzip")
    with ScriptedServer({"/v1/models": answer}) as server:
        refused(perf, "--llm-url", server.url, says="*compresses its answers*")


# Numbers and choices


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--llm-contexts=8X"], "--llm-contexts: '8X' is not a token count*"),
        (["--llm-contexts=-1"], "--llm-contexts: *-1*"),
        (["--llm-contexts=8K,8192"], "--llm-contexts: *more than once*"),
        (["--llm-prefill-contexts="], "--llm-prefill-contexts: the list is empty*"),
        (["--llm-concurrency=0"], "--llm-concurrency: '0' is not a number of requests*"),
        (["--llm-concurrency=1.5"], "--llm-concurrency: '1.5'*"),
        (["--llm-duration=0"], "--llm-duration: 0 must be at least 0.1 s*"),
        (["--llm-duration=-3"], "--llm-duration: -3 must be at least 0.1*"),
        (["--llm-duration=nan"], "--llm-duration: nan must be at least 0.1*"),
        (["--llm-duration=inf"], "--llm-duration: inf*"),
        (["--llm-duration=30s"], "--llm-duration: '30s' is not a number*"),
        (["--llm-settle=-1"], "--llm-settle: -1*"),
        (["--llm-max-tokens=0"], "--llm-max-tokens: *0*"),
        (["--llm-kv-tokens=lots"], "--llm-kv-tokens: *lots*"),
        (["--llm-wait=soon"], "--llm-wait: 'soon' is not a number*"),
        (["--llm-extra-body={"], "--llm-extra-body: not JSON*"),
        (["--llm-extra-body=[]"], "--llm-extra-body: must be a JSON object*"),
        (["--llm-header=oops"], "--llm-header: write NAME:VALUE*"),
        (["--llm-tolerance=speed=0.1"], "--llm-tolerance: 'speed=0.1'*total_tok_s*"),
        (["--llm-tolerance=itl_ms=10"], "--llm-tolerance: *a fraction, 0.1 is 10 %*"),
        (["--llm-gate=speed"], "--llm-gate: 'speed' is none of*total_tok_s*"),
        (["--llm-report=pdf"], "--llm-report: 'pdf' is none of html, json, md*"),
        (["--llm-run-info=missing.yaml"], "--llm-run-info: cannot read missing.yaml*"),
        (["--update-baselines"], "--update-baselines needs --hardware*"),
        (["--llm-prune"], "*go with --update-baselines*"),
        (["--hardware=nonesuch"], "*nonesuch*h200nvl_x2, rtxpro6k_x4*"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_value_that_cannot_be_used(perf: pytest.Pytester, args: list[str], message: str) -> None:
    """The option, the value, and what it takes; the server is not asked anything."""
    with ScriptedServer({"/v1/models": models("m")}) as server:
        refused(perf, "--llm-url", server.url, *args, says=message)
        assert server.requests == []


# Baselines


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", "schema: [1", "*mine.yaml:2: not YAML*"),
        ("schema: 1", "schema: 2", "*mine.yaml*schema*2*"),
        ("schema: 1", "schema: 1\nspeed: fast", "*mine.yaml*speed*unknown field*"),
        ("total_tok_s: [153.", "total_tok_s: [.nan, 153.", "*mine.yaml*total_tok_s*finite*nan*"),
        ("total_tok_s: [153.", "total_tok_s: [-1", "*mine.yaml*total_tok_s*"),
        ("itl_ms: [", "itl_ms: ['12', ", "*mine.yaml*itl_ms*number*'12'*"),
        ("itl_ms: [", "itl_mss: [", "*mine.yaml*itl_mss*unknown field*"),
        ("runs:\n", "runs:\n  - 3\n", "*mine.yaml*"),
    ],
)
def test_a_baseline_that_cannot_be_trusted(
    perf: pytest.Pytester, old: str, new: str, message: str
) -> None:
    """File and field or line, before the server is asked anything."""
    text = SHIPPED.read_text().replace("profile: rtxpro6k_x4", "profile: mine")
    assert old in text
    folder = perf.mkdir("baselines")
    (folder / "mine.yaml").write_text(text.replace(old, new, 1))
    with ScriptedServer({"/v1/models": models("m")}) as server:
        refused(perf, "--llm-url", server.url, "--hardware=mine", says=message)
        assert server.requests == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"hello", b"[]", b"schema: 1\n"])
def test_a_file_that_is_no_baseline(perf: pytest.Pytester, content: bytes) -> None:
    (perf.mkdir("baselines") / "mine.yaml").write_bytes(content)
    refused(perf, "--llm-url=http://127.0.0.1:1", "--hardware=mine", says="*mine.yaml*")


@pytest.mark.parametrize("name", ["../mine", "/etc/passwd", "a/b", "..", "x" * 300])
def test_a_profile_is_a_name_not_a_path(perf: pytest.Pytester, name: str) -> None:
    """Nothing outside the baselines folder is read or written."""
    args = ("--llm-url=http://127.0.0.1:1", f"--hardware={name}", "--update-baselines")
    refused(perf, *args, says=f"*{name}*")


def test_a_new_profile_cannot_be_simulated(perf: pytest.Pytester) -> None:
    """The simulator is told what to play; --update-baselines, which is given, is not the remedy."""
    args = ("--llm-url=sim", "--hardware=mine", "--update-baselines")
    refused(perf, *args, says="the simulator has no profile 'mine' to play; name one: sim:PROFILE*")


# Two runs at once


def test_a_second_run_against_one_server_says_who_holds_it(perf: pytest.Pytester) -> None:
    """Also when it spells the address otherwise, and once the first is done it may go on."""
    with ScriptedServer({"/v1/models": models("a", "b")}) as server:
        lock = ServerLock(server.url)
        port = server.url.rpartition(":")[2]
        for url in (server.url, f"{server.url}/v1/", f"http://localhost:{port}"):
            message = "*is being measured by process * in *two runs at once*"
            refused(perf, "--llm-url", url, says=message)
        lock.release()
        refused(perf, "--llm-url", server.url, says="the server serves several models*")


def test_collecting_needs_no_server(perf: pytest.Pytester) -> None:
    result = perf.runpytest("perf_tests", "--collect-only", "--llm-url=http://127.0.0.1:1", *SMALL)
    assert result.ret == 0


def test_the_message_of_a_json_body_is_one_line(perf: pytest.Pytester) -> None:
    """A server cannot write control characters to the terminal."""
    body = json.dumps({"error": {"message": "\x1b]0;owned\x07\n::error::mine"}})
    with ScriptedServer({"/v1/models": says(401, body)}) as server:
        result = perf.runpytest("perf_tests", *SMALL, "--llm-url", server.url)
    assert result.ret == 4
    assert "\x1b]0" not in result.stderr.str()
    assert "\n::error" not in result.stderr.str()
    assert Path("perf_tests").exists()


def test_a_profile_is_not_taken_for_what_serves(perf: pytest.Pytester) -> None:
    """Without a GPU to be seen a baseline of another machine compares like the right one: that
    nothing vouches for it is said before the run and in its report; what the user states counts."""
    routes = {"/v1/models": models("m"), "/v1/chat/completions": chat}
    with ScriptedServer(routes) as server:
        common = ("perf_tests/test_prefill.py", *SMALL, *QUICK, "--llm-url", server.url)
        lab = ("--hardware=lab", "--llm-dry-run", "--update-baselines")
        told = "--llm-run-info=gpu=H200"
        made = perf.runpytest(*common, told, "--hardware=lab", "--update-baselines")
        assert made.ret == 0
        trusted = perf.runpytest(*common, *lab)
        stated = perf.runpytest(*common, *lab, told)
    words = "*hardware: nothing vouches for the hardware*"
    trusted.stdout.fnmatch_lines([f"llmperf: {words}", f"note: {words}"])
    stated.stdout.no_fnmatch_line(words)
