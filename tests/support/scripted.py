"""An HTTP/1.1 server that does exactly what a test scripts, byte for byte, at scripted times.

It runs in a thread with an event loop of its own, so that a test's own loop does not pace it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply:
    """Writes the answer. Every call is flushed as one write to the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._chunked = False

    async def raw(self, data: bytes) -> None:
        """These bytes, as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def respond(
        self,
        status: int,
        body: bytes | str | dict[str, Any] = b"",
        content_type: str = "",
        **headers: str,
    ) -> None:
        """A whole answer with a length. A dict becomes JSON."""
        if isinstance(body, dict):
            body, content_type = json.dumps(body), content_type or "application/json"
        payload = body.encode() if isinstance(body, str) else body
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: {content_type or 'text/plain'}\r\n"
            f"{extra}Content-Length: {len(payload)}\r\n\r\n"
        )
        await self.raw(head.encode() + payload)

    async def start_stream(self, content_type: str = "text/event-stream") -> None:
        """Headers of a chunked 200 answer."""
        self._chunked = True
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await self.raw(head.encode())

    async def send(self, data: bytes) -> None:
        """One HTTP chunk of a started stream."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, payload: dict[str, Any] | str) -> None:
        """One ``data:`` event in an HTTP chunk of its own."""
        text = payload if isinstance(payload, str) else json.dumps(payload)
        await self.send(f"data: {text}\n\n".encode())

    async def end_stream(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def abort(self) -> None:
        """Drop the connection with a reset."""
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection in order, once what was written is out."""
        self._writer.close()

    async def client_gone(self) -> bool:
        """Whether the client has closed its side; does not wait."""
        return self._reader.at_eof() or self._writer.is_closing()


Handler = Callable[[Request, Reply], Awaitable[None]]


@dataclass
class ScriptedServer:
    """``with ScriptedServer({"/v1/models": handler}) as server: ... server.url``.

    A path without a handler answers 404. ``requests`` and ``connections`` (peer addresses) list
    what came, ``open_now`` and ``open_peak`` count handlers running at the same time.
    """

    routes: dict[str, Handler]
    requests: list[Request] = field(default_factory=list)
    open_now: int = 0
    open_peak: int = 0
    connections: list[Any] = field(default_factory=list)
    url: str = ""
    ssl: Any = None
    host: str = "127.0.0.1"

    def __enter__(self) -> ScriptedServer:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(
            self._connected, self.host, 0, ssl=self.ssl, limit=2**26
        )
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.ssl else 'http'}://{self.host}:{port}"
        ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections.append(writer.get_extra_info("peername"))
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while (request := await self._read(reader)) is not None:
                    self.requests.append(request)
                    self.open_now += 1
                    self.open_peak = max(self.open_peak, self.open_now)
                    try:
                        await self._handle(request, Reply(reader, writer))
                    finally:
                        self.open_now -= 1
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle(self, request: Request, reply: Reply) -> None:
        handler = self.routes.get(request.path.split("?")[0])
        if handler is None:
            await reply.respond(404, {"detail": "Not Found"})
        else:
            await handler(request, reply)

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = dict(_header(line) for line in lines if ":" in line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def chunk(
    text: str | None = None, *, tokens: int | None = None, finish: str | None = None, **delta: Any
) -> dict[str, Any]:
    """A chat completion chunk as vLLM sends it; ``tokens`` adds cumulative usage."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {**({} if text is None else {"content": text}), **delta},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
    }
    if tokens is not None:
        body["usage"] = {
            "prompt_tokens": 10,
            "completion_tokens": tokens,
            "total_tokens": 10 + tokens,
        }
    return body


def text_events(count: int) -> Iterator[dict[str, Any]]:
    """``count`` one-token chunks with continuous usage, the last one finishing by length."""
    for i in range(1, count + 1):
        yield chunk(f"w{i} ", tokens=i, finish="length" if i == count else None)
