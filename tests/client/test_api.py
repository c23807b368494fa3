"""Plain calls: bounded in time and size, and the key goes to the server under test only."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.http import Unreachable, explain_failure
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.model.settings import Connection
from tests.support.scripted import Handler, Reply, Request, ScriptedServer

KEY = "sk-very-secret"


def call(
    use: Callable[[ServerApi], Awaitable[Any]], url: str, timeout_s: float = 5.0, **settings: Any
) -> Any:
    async def main() -> Any:
        async with ServerApi(Connection(url, **settings), timeout_s=timeout_s) as api:
            return await use(api)

    return asyncio.run(main())


def get(path: str, routes: dict[str, Handler], **settings: Any) -> tuple[int, str]:
    with ScriptedServer(routes) as server:
        answer: tuple[int, str] = call(lambda api: api.get(path), server.url, **settings)
        return answer


def raw(data: bytes) -> Handler:
    async def handler(_: Request, reply: Reply) -> None:
        await reply.raw(data)
        reply.close()

    return handler


def saying(status: int, body: Any, **headers: str) -> Handler:
    async def handler(_: Request, reply: Reply) -> None:
        await reply.respond(status, body, **headers)

    return handler


@pytest.mark.parametrize("status", [200, 204, 401, 404, 500, 503])
def test_a_status_never_raises(status: int) -> None:
    assert get("/x", {"/x": saying(status, "words" if status != 204 else "")})[0] == status


def test_a_post_sends_json_and_the_key() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        await reply.respond(200, {"got": request.json})

    with ScriptedServer({"/tokenize": handler}) as server:
        answer = call(
            lambda api: api.post("/tokenize", {"a": "é"}), server.url + "/v1/", api_key=KEY
        )
    assert answer == (200, '{"got": {"a": "\\u00e9"}}')


def test_one_api_serves_several_event_loops() -> None:
    with ScriptedServer({"/x": saying(200, "x")}) as server:
        api = ServerApi(Connection(server.url))
        assert [asyncio.run(api.get("/x")) for _ in range(3)] == [(200, "x")] * 3


def test_metrics_at_another_address_with_the_same_key() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.respond(200, "metrics")

    with ScriptedServer({"/m": handler}) as metrics, ScriptedServer({}) as server:
        for path, answer in (("/metrics", 200), ("/metrics?model=m", 200), ("/other", 404)):
            got = call(
                lambda api, path=path: api.get(path),
                server.url,
                api_key=KEY,
                metrics_url=f"{metrics.url}/m",
            )
            assert got[0] == answer
        asked, with_query = metrics.requests
        assert with_query.path == asked.path, "the user's address, whatever the engine would ask"
        assert asked.headers["authorization"] == f"Bearer {KEY}"


def test_redirects_are_followed_within_the_server() -> None:
    routes = {"/metrics": saying(307, "", Location="/metrics/"), "/metrics/": saying(200, "m 1")}
    assert get("/metrics", routes) == (200, "m 1")


def test_a_redirect_elsewhere_is_not_followed_and_gets_no_key() -> None:
    with ScriptedServer({"/x": saying(200, "stolen")}) as other:
        status, text = get("/x", {"/x": saying(302, "", Location=f"{other.url}/x")}, api_key=KEY)
        assert other.requests == []
    assert status == 302
    assert "use that address" in text


def test_redirects_in_a_circle_end() -> None:
    status, text = get("/x", {"/x": saying(302, "", Location="/x")})
    assert (status, text) == (302, "redirects in a circle")


def test_a_post_is_not_turned_into_another_request() -> None:
    routes = {"/x": saying(302, "", Location="/y"), "/y": saying(200, "y")}
    with ScriptedServer(routes) as server:
        assert call(lambda api: api.post("/x", {}), server.url)[0] == 302
        assert len(server.requests) == 1


def test_secrets_in_error_answers_are_not_passed_on() -> None:
    status, text = get("/x", {"/x": saying(401, f"bad key {KEY}")}, api_key=KEY)
    assert status == 401
    assert text.startswith("bad key")
    assert KEY not in text


async def endless(_: Request, reply: Reply) -> None:
    await reply.start_stream("text/plain")
    for _i in range(1_000_000):
        await reply.send(b"x" * 100_000)


async def silent(_: Request, reply: Reply) -> None:
    await asyncio.sleep(30)


async def dripping(_: Request, reply: Reply) -> None:
    await reply.start_stream("text/plain")
    for _i in range(1000):
        await reply.send(b"x")
        await asyncio.sleep(0.05)


def test_a_body_has_a_size_limit() -> None:
    with pytest.raises(ServerUnusable, match="more than 16 MiB"):
        get("/x", {"/x": endless})


@pytest.mark.parametrize("handler", [silent, dripping])
def test_a_call_has_a_time_limit_as_a_whole(handler: Handler) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="did not answer in time") as caught:
        get("/x", {"/x": handler}, timeout_s=0.3)
    assert time.monotonic() - began < 20, "not the 50 s that it drips"
    assert caught.value.cause == "timeout"


CAUSES = {
    "not-http": raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "lost": raw(b""),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_http_answer_has_a_cause(cause: str) -> None:
    with pytest.raises(Unreachable) as caught:
        get("/x", {"/x": CAUSES[cause]})
    assert caught.value.cause == cause


def test_a_refused_connection_says_what_to_do() -> None:
    with pytest.raises(Unreachable, match=r"nothing listens at .*--llm-wait") as caught:
        call(lambda api: api.get("/x"), "http://127.0.0.1:9", api_key=KEY)
    assert caught.value.cause == "refused"


def test_an_address_of_ip_version_6_is_shown_as_it_is_written() -> None:
    with pytest.raises(Unreachable, match=r"http://\[::1\]:9"):
        call(lambda api: api.get("/x"), "http://[::1]:9")


@pytest.mark.parametrize("proxy", ["foo://me:secret@p:1", "http://p:port", "socks9://p:1"])
def test_a_proxy_that_cannot_be_used_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ConfigError, match="a proxy that the environment names") as caught:
        call(lambda api: api.get("/x"), "http://model.example")
    assert "secret" not in str(caught.value)


def test_a_proxy_that_is_not_there_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match="through the proxy that the environment names"):
        call(lambda api: api.get("/x"), "http://model.example")


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(Unreachable, match=r"no host is named 'no-such-host\.invalid'") as caught:
        call(lambda api: api.get("/x"), "http://no-such-host.invalid:8000", timeout_s=8)
    assert caught.value.cause == "dns"


def test_https_to_a_server_without_tls_is_a_tls_failure() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with ServerApi(Connection(f"https://127.0.0.1:{port}"), timeout_s=5) as api:
            with pytest.raises(Unreachable, match="did you mean http://") as caught:
                await api.get("/x")
        assert caught.value.cause == "no-tls"
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_timeout_over_tls_is_a_timeout() -> None:
    """The TLS layer waited for bytes, which is no failure of it."""
    error = httpx.ReadTimeout("")
    error.__context__ = ssl.SSLWantReadError(2, "The operation did not complete")
    assert explain_failure(error, httpx.URL("https://gpu1")).cause == "timeout"


def test_compressed_answers_are_refused() -> None:
    """They were not asked for, and could be far larger than they look."""
    with pytest.raises(ServerUnusable, match="compresses"):
        get("/x", {"/x": saying(200, b"\x1f\x8b", Content_Encoding="gzip")})


@pytest.mark.parametrize("url", ["gpu1:8000", "ftp://gpu1", "http://", "", "http://[::1", "//x"])
def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(ConfigError, match="--llm-url"):
        ServerApi(Connection(url))


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "a\nb"},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X\n": "a"}},
        {"headers": {"X": "Zoë"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"": "a"}},
    ],
)
def test_a_header_cannot_smuggle_another(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="control character") as caught:
        ServerApi(Connection("http://gpu1", **settings))
    assert "a\nb" not in str(caught.value)


def test_a_ca_file_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match="CA file"):
        ServerApi(Connection("https://gpu1", verify="/no/such/ca.pem"))


def test_a_user_in_the_address_becomes_a_header_and_is_never_shown() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.respond(200, request.headers["authorization"])

    with ScriptedServer({"/x": handler}) as server:
        url = server.url.replace("://", "://me:pass%20word@")
        assert call(lambda api: api.get("/x"), url) == (200, "Basic bWU6cGFzcyB3b3Jk")
    with pytest.raises(Unreachable) as caught:
        call(lambda api: api.get("/x"), "http://me:password@127.0.0.1:9")
    assert "password" not in str(caught.value)
