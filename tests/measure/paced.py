"""A server of known pacing for the scripted server, and a measurer pointed at it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.engines.base import Gauges, Message
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.result import ServerInfo
from pytest_llmperf.model.settings import Connection, Timing, Workload
from tests.support.scripted import Reply, Request, ScriptedServer, chunk

PATH = "/v1/chat/completions"
TEMPLATE = 10


def tokens_of(text: str) -> int:
    """How this server counts a prompt."""
    return TEMPLATE + len(text.split())


_EVENT = (
    b'data: {"id":"r%d","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}],"usage":%s}\n\n'
)
_USAGE = b'{"prompt_tokens":%d,"completion_tokens":%d}'


@dataclass
class Logged:
    """What the server did for one request, by its own clock."""

    number: int
    arrived: float
    first_due: float
    pace: float
    """Seconds a token."""
    tokens: list[tuple[float, int]] = field(default_factory=list)
    """When a chunk was written, and tokens so far."""
    ended: float = inf

    def tokens_before(self, at: float) -> float:
        """Tokens made before a moment: one by one at an even pace, also those that went out with
        the first chunk, then flat."""
        if self.pace and self.tokens and at <= (chunk := self.tokens[0])[0]:
            behind = (chunk[0] - at) / self.pace
            return chunk[1] - behind if behind <= chunk[1] - 1 else 0.0
        earlier = [entry for entry in self.tokens if entry[0] < at]
        later = [entry for entry in self.tokens if entry[0] >= at]
        if not earlier:
            return 0.0
        (t, n) = earlier[-1]
        if not later:
            return float(n)
        (u, m) = later[0]
        return n + (m - n) * (at - t) / (u - t)


@dataclass
class Paced:
    """Answers chat requests on a schedule without drift: the first chunk ``ttft`` seconds after
    the request arrived, the k-th ``k * step`` after that. It ends at ``max_tokens``.

    ``slots`` requests run at a time, the others wait in turn. ``cached`` says how many tokens of
    a prompt were cached, given whether that prompt was seen before.
    """

    ttft: float | Callable[[int], float] = 0.02
    step: float | Callable[[int], float] = 0.02
    per_chunk: int = 1
    slots: int = 10_000
    usage: str = "continuous"
    flush: int = 1
    """Chunks held back and written together."""
    role_at: float | None = None
    stop_after: int | None = None
    text: str = "word{i} of stream {n}, and so on; "
    prompt_tokens: Callable[[str], int] = tokens_of
    cached: Callable[[bool, int], int | None] = lambda seen, prompt: None
    refuse: Callable[[int, dict[str, object]], tuple[int, object] | None] = lambda n, body: None
    goes_on: float = 0.0
    """Seconds a request still counts as running after its client left."""
    bodies: list[dict[str, object]] = field(default_factory=list)
    prompts: set[str] = field(default_factory=set)
    running: int = 0
    waiting: int = 0
    peak: int = 0
    generated: int = 0
    log: list[Logged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gate: asyncio.Semaphore | None = None

    async def __call__(self, request: Request, reply: Reply) -> None:
        arrived = time.monotonic()
        body = request.json
        number = len(self.bodies)
        self.bodies.append(body)
        refusal = self.refuse(number, body)
        if refusal is not None:
            status, words = refusal
            await reply.respond(status, {"error": {"message": words}})
            return
        self._gate = self._gate or asyncio.Semaphore(self.slots)
        self.waiting += 1
        try:
            await self._gate.acquire()
        finally:
            self.waiting -= 1
        if self.slots < 10_000:
            arrived = time.monotonic()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self._answer(number, body, arrived, reply)
        except (ConnectionError, asyncio.CancelledError):
            if self.goes_on:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(self.goes_on)
            raise
        finally:
            self.running -= 1
            self._gate.release()

    async def _answer(self, number: int, body: dict, arrived: float, reply: Reply) -> None:  # type: ignore[type-arg]
        prompt = body["messages"][0]["content"]
        wanted = min(body["max_tokens"], self.stop_after or 10**9)
        usage = {"prompt_tokens": self.prompt_tokens(prompt)}
        cached = self.cached(prompt in self.prompts, usage["prompt_tokens"])
        self.prompts.add(prompt)
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        await reply.start_stream()
        if self.role_at is not None:
            await _sleep_until(arrived + self.role_at)
            await reply.event(chunk(role="assistant", content=""))
        first = arrived + (self.ttft(number) if callable(self.ttft) else self.ttft)
        step = self.step(number) if callable(self.step) else self.step
        held: list[bytes] = []
        made = index = 0
        log = Logged(number, arrived, first, step / self.per_chunk)
        self.log.append(log)
        while made < wanted:
            await _sleep_until(first + index * step)
            if await reply.client_gone():
                raise ConnectionError
            before, made, index = made, min(made + self.per_chunk, wanted), index + 1
            self.generated += made - before
            reason = "stop" if self.stop_after else "length"
            held.append(
                _EVENT
                % (
                    number,
                    self.text.format(i=made, n=number).encode(),
                    b'"%s"' % reason.encode() if made == wanted else b"null",
                    _USAGE % (usage["prompt_tokens"], made)
                    if self.usage == "continuous"
                    else b"null",
                )
            )
            log.tokens.append((time.monotonic(), made))
            if len(held) >= self.flush or made == wanted:
                await reply.send(b"".join(held))
                held = []
        log.ended = time.monotonic()
        if self.usage != "none":
            final = {"choices": [], "usage": {**usage, "completion_tokens": made, **details}}
            await reply.event(final)
        await reply.send(b"data: [DONE]\n\n")
        await reply.end_stream()


async def _sleep_until(at: float) -> None:
    delay = at - time.monotonic()
    if delay > 0:
        await asyncio.sleep(delay)


@contextlib.contextmanager
def quick_threads() -> Iterator[None]:
    """Let the servers' threads have their turn in time: they share the interpreter with us."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class FakeEngine:
    """An engine whose gauges and tokenizer a test provides."""

    name = "fake"

    def __init__(
        self,
        gauges: Callable[[], Gauges | None] = lambda: None,
        *,
        slow_s: float = 0.0,
        counts: Callable[[str], int] | None = None,
    ) -> None:
        self._gauges = gauges
        self._slow_s = slow_s
        self._counts = counts
        self.scrapes = 0

    async def describe(self) -> ServerInfo:
        return ServerInfo(engine="fake", model="m")

    async def gauges(self) -> Gauges | None:
        self.scrapes += 1
        if self._slow_s:
            await asyncio.sleep(self._slow_s)
        return self._gauges()

    async def count_tokens(self, prompt: str | Sequence[Message]) -> int | None:
        if self._counts is None:
            return None
        if isinstance(prompt, str):
            return self._counts(prompt)
        return self._counts(prompt[0]["content"])

    async def abort(self, request_id: str) -> None:
        """Nothing."""


def gauges_of(paced: Paced) -> Callable[[], Gauges]:
    """What that server would show."""
    return lambda: Gauges(
        at=time.monotonic(),
        running=paced.running,
        waiting=paced.waiting,
        generated_tokens=paced.generated,
        started=1.0,
    )


QUICK = Timing(
    duration_s=1.0, settle_s=0.2, stall_s=2.0, drain_s=1.0, first_token_s=1.0, warm_load_s=0.0
)
"""Without the load before a session's first decode cell."""


@contextlib.contextmanager
def measuring(
    paced: Paced,
    *,
    engine: FakeEngine | None = None,
    workload: Workload | None = None,
    timing: Timing = QUICK,
    info: ServerInfo | None = None,
    progress: Callable[[object], None] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[tuple[Measurer, ScriptedServer]]:
    """A measurer of a running server."""
    with ScriptedServer({PATH: paced}, host=host) as server:
        connection = Connection(server.url)
        yield (
            Measurer(
                ServerApi(connection),
                engine or FakeEngine(counts=tokens_of),
                info or ServerInfo(engine="fake", model="m", speculative=False),
                connection,
                workload or Workload(),
                timing,
                "reserved",
                None,
                progress,
            ),
            server,
        )
