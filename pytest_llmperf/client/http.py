"""Addresses, headers, TLS and causes of failure: what the plain and the measured calls share."""

from __future__ import annotations

import base64
import errno
import ipaddress
import re
import ssl
import urllib.request
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes

import httpx

from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.model.settings import Connection

CONNECT_S = 10.0
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""What OpenSSL, by its version, says of an answer in plain text."""

Cause = Literal["refused", "dns", "tls", "no-tls", "timeout", "not-http", "lost", "network"]


class Unreachable(ServerUnusable):
    """No HTTP answer at all.

    Attributes:
        cause: what kind of failure; "refused" is the one that waiting for a server may cure.
    """

    def __init__(self, cause: Cause, words: str) -> None:
        super().__init__(words)
        self.cause = cause


def parse_root(url: str) -> httpx.URL:
    """The server's root: the given address without a trailing slash and ``/v1``.

    Raises:
        ConfigError: not an http(s) address, or one with a query, which requests would not carry.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--llm-url: {error}; give an address such as http://gpu1:8000") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("--llm-url: give an address such as http://gpu1:8000, scheme included")
    if parsed.query:
        raise ConfigError(
            "--llm-url: leave out what follows the '?'; a key goes into LLMPERF_API_KEY or "
            "--llm-header"
        )
    path = parsed.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return parsed.copy_with(path=path or "/", fragment=None, userinfo=b"")


def is_loopback(url: str) -> bool:
    """Whether an address is that of the very host which asks."""
    host = parse_root(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def join_path(root: httpx.URL, path: str) -> httpx.URL:
    """An address below the root; ``path`` starts with a slash and may have a query of its own."""
    base = root.raw_path.partition(b"?")[0].rstrip(b"/")
    return root.copy_with(raw_path=base + path.encode())


def same_origin(a: httpx.URL, b: httpx.URL) -> bool:
    return (a.scheme, a.host, _port(a)) == (b.scheme, b.host, _port(b))


def build_headers(connection: Connection) -> dict[str, str]:
    """Headers of every request of ours, the key among them.

    Raises:
        ConfigError: a header or the key has a line break, or anything else that cannot stand there.
    """
    headers = {"user-agent": "pytest-llmperf", "accept-encoding": "identity"}
    user = httpx.URL(connection.url).userinfo
    if user:
        headers["authorization"] = f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}"
    if connection.api_key:
        headers["authorization"] = f"Bearer {connection.api_key.strip()}"
    headers |= {name.lower(): value for name, value in connection.headers.items()}
    for name, value in headers.items():
        if not (_HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise ConfigError(
                f"the header {name!r} (or the API key) has a control character in it, or another "
                "that cannot stand in a header"
            )
    return headers


def list_secrets(connection: Connection) -> list[str]:
    """What must never be shown, longest first."""
    secrets = {connection.api_key or "", httpx.URL(connection.url).password}
    for value in connection.headers.values():
        secrets |= {value, value.rpartition(" ")[2]}
    return sorted((s.strip() for s in secrets if len(s.strip()) >= 4), key=len, reverse=True)


def build_tls(verify: bool | str) -> ssl.SSLContext:
    """TLS settings: the system's store, a CA file or folder, or (False) no verification.

    Raises:
        ConfigError: the CA file cannot be read.
    """
    try:
        if isinstance(verify, str):
            where = Path(verify)
            context = (
                ssl.create_default_context(capath=verify)
                if where.is_dir()
                else ssl.create_default_context(cafile=verify)
            )
        else:
            context = ssl.create_default_context()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot read the CA file {verify}: {error}") from None
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def find_proxy(url: httpx.URL) -> str | None:
    """The proxy the environment names for this address, if any."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def explain_failure(error: BaseException, url: httpx.URL) -> Unreachable:
    """Why there was no answer, and what to do about it."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    where = f"{url.scheme}://{host}:{_port(url)}"
    if find_proxy(url):
        where += " (through the proxy that the environment names)"
    chain = _chain(error)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unreachable(
                "tls",
                f"{where}: its certificate is not trusted ({cause.verify_message}); "
                "name its CA file, or switch verification off",
            )
    for cause in chain:
        # one that only waits for bytes is in the chain of every timeout
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError):
            if cause.reason in _NO_TLS:
                words = f"the server does not speak TLS; did you mean http://{host}:{_port(url)}?"
                return Unreachable("no-tls", f"{where}: {words}")
            return Unreachable("tls", f"{where}: no TLS connection ({cause.reason})")
    text = " ".join(str(cause) for cause in chain)
    codes = {cause.errno for cause in chain if isinstance(cause, OSError)}
    if any(type(cause).__name__ == "gaierror" for cause in chain) or "getaddrinfo" in text:
        return Unreachable("dns", f"no host is named {url.host!r}; check the address")
    if errno.EMFILE in codes:
        return Unreachable("network", "too many open files; raise the limit with ulimit -n")
    if errno.ECONNREFUSED in codes or "Connect call failed" in text:
        return Unreachable(
            "refused",
            f"nothing listens at {where}; start the server, or wait for it with --llm-wait SECONDS",
        )
    if any(isinstance(cause, (TimeoutError, httpx.TimeoutException)) for cause in chain) or any(
        type(cause).__name__ == "TimeoutError" for cause in chain
    ):
        return Unreachable("timeout", f"{where} did not answer in time")
    if (
        codes & {errno.ECONNRESET, errno.EPIPE}
        or any(isinstance(cause, httpx.ReadError) for cause in chain)
        or "disconnected" in text
    ):
        return Unreachable("lost", f"{where} closed the connection")
    if any(isinstance(cause, httpx.ProtocolError) for cause in chain):
        return Unreachable("not-http", f"{where} does not speak HTTP/1.1 ({error})")
    return Unreachable("network", f"{where}: {error or type(error).__name__}")


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
