"""The simulated server's HTTP side: a raw ASGI app, one class, no framework."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_llmperf.sim import tokenizer
from pytest_llmperf.sim.faults import Faults
from pytest_llmperf.sim.pacer import Pacer, clock
from pytest_llmperf.sim.parameters import SimParameters
from pytest_llmperf.sim.scheduler import SimRequest
from pytest_llmperf.sim.stream import Live
from pytest_llmperf.sim.truth import RequestTruth, TruthFile
from pytest_llmperf.sim.wire import Answer, Counters, Headers, Job, Personality, Served

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_COMPLETIONS = {
    "/v1/chat/completions": True,
    "/chat/completions": True,
    "/v1/completions": False,
    "/completions": False,
}
_POSTS = {*_COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"}
_LARGE = 32 << 10
"""Bodies of so many bytes are tokenized in a thread, and remembered."""
_REMEMBERED = 8


@dataclass(frozen=True)
class Parsed:
    """A completion request's body, without its text."""

    model: str | None
    prompt_tokens: int
    block_hashes: tuple[int, ...]
    max_tokens: int | None
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


class BadField(Exception):
    """A body that is JSON but no such request."""


class App:
    """Answers requests from the pacer's engine in a personality's words."""

    def __init__(
        self,
        parameters: SimParameters,
        served: Served,
        personality: Personality,
        pacer: Pacer,
        faults: Faults,
        truth: TruthFile | None = None,
    ) -> None:
        self._parameters = parameters
        self._served = served
        self._personality = personality
        self._pacer = pacer
        self._faults = faults
        self._truth = truth
        self._number = 0
        self._parsed: OrderedDict[tuple[bool, bytes], Parsed] = OrderedDict()
        stamp = (b"x-llmperf-simulated", served.profile.encode())
        self._headers: Headers = (stamp, *personality.headers)
        self._stream_start = {
            "type": "http.response.start",
            "status": 200,
            "headers": self._headers + personality.stream_headers,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        body = await _read(receive)
        answer = self._turn_away(path, dict(scope["headers"]))
        if answer is None and path in _POSTS:
            if method != "POST":
                answer = replace(self._personality.refuse(405), headers=((b"allow", b"POST"),))
            elif path in _COMPLETIONS:
                answer = await self._complete(_COMPLETIONS[path], body, receive, send)
                if answer is None:
                    return
            else:
                answer = await asyncio.to_thread(self._tool, path, body)
        await self._send(send, answer or self._page(path))

    def _turn_away(self, path: str, headers: dict[bytes, bytes]) -> Answer | None:
        """Refusals that come before a request is looked at."""
        personality, key = self._personality, self._parameters.api_key
        if self._pacer.moment().time < self._parameters.loading:
            return personality.refuse(503, "Loading model")
        if key is not None and personality.needs_key(path):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + key.encode()):
                return personality.refuse(401)
        return None

    # Completions

    async def _complete(
        self, chat: bool, body: bytes, receive: Receive, send: Send
    ) -> Answer | None:
        """Stream an answer, or return one."""
        arrived = clock()
        self._number += 1
        number = self._number
        personality, faults = self._personality, self._faults
        at = self._pacer.moment(number)
        if (refusal := faults.find("http", at)) is not None:
            assert refusal.value is not None
            return personality.refuse(int(refusal.value))
        try:
            parsed = await self._parse(chat, body)
        except json.JSONDecodeError as problem:
            return personality.bad_json(problem)
        except BadField as problem:
            return personality.refuse(400, str(problem))
        if personality.checks_model and parsed.model not in (None, self._served.model):
            return personality.unknown_model(parsed.model or "")
        answer = personality.reject_length(parsed.prompt_tokens, parsed.max_tokens)
        if answer is not None:
            return answer

        wrong = faults.find("wrong_usage", at)
        job = Job(
            id=f"{personality.id_prefix[chat]}-simulated{number:08x}",
            chat=chat,
            model=parsed.model or self._served.model,
            created=self._served.created + int(at.time),
            prompt_tokens=parsed.prompt_tokens,
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            continuous_usage=parsed.continuous_usage,
            usage=faults.find("no_usage", at) is None,
            usage_factor=wrong.value or 1.0 if wrong else 1.0,
        )
        if self._full():
            event = personality.error_event(503, "")
            if not job.stream:
                return personality.refuse(503)
            await send(self._stream_start)
            await send({"type": "http.response.body", "body": event})
            return None
        live = self._live(job, number, arrived)
        room = self._served.max_model_len - parsed.prompt_tokens
        limit = room if parsed.max_tokens is None or parsed.max_tokens < 0 else parsed.max_tokens
        self._pacer.submit(
            live,
            SimRequest(
                job.id,
                parsed.prompt_tokens,
                parsed.block_hashes,
                max(1, min(limit, room)),
                ignore_eos=parsed.ignore_eos,
            ),
        )
        # the only other message of an ASGI server now is that the client has gone
        watcher = asyncio.ensure_future(receive())
        watcher.add_done_callback(lambda _: self._pacer.gone(live))
        try:
            return await (self._stream if job.stream else self._whole)(live, send)
        finally:
            watcher.cancel()

    def _full(self) -> bool:
        limit = self._parameters.queue_limit
        return limit is not None and self._pacer.counters().waiting >= limit

    def _live(self, job: Job, number: int, arrived: float) -> Live:
        faults, at = self._faults, self._pacer.moment(number)
        interval: float = self._parameters.stream_interval
        first: float = 1
        if (hold := faults.find("hold", at)) is not None:
            first = interval = hold.value or math.inf
        buffer = faults.find("buffer", at)
        truth = None
        if self._truth is not None:
            truth = RequestTruth(number, job.id, job.chat, job.prompt_tokens, arrived)
        return Live(
            job,
            self._personality.stream(job),
            number,
            arrived,
            first=first,
            interval=interval,
            buffer=(buffer.value or math.inf) if buffer else 0,
            zombie=faults.find("zombie", at) is not None,
            watch=faults.concerning(number),
            truth=truth,
        )

    async def _stream(self, live: Live, send: Send) -> None:
        pinger = None
        if self._personality.headers_wait:
            await live.started.wait()
            if self._parameters.ping:
                pinger = asyncio.ensure_future(_keep_alive(live, self._parameters.ping))
        # a proxy that buffers keeps the headers back too
        data = await live.take() if live.buffer else b""
        await send(self._stream_start)
        while data or (data := await live.take()):
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = b""
        if pinger is not None:
            pinger.cancel()
        if not live.cut_off:
            await send({"type": "http.response.body"})

    async def _whole(self, live: Live, send: Send) -> Answer | None:
        await live.take()
        if live.reason == "error":
            return self._personality.refuse(500)
        if live.cut_off:
            return None
        text = b"".join(live.text)
        return Answer(
            200, self._personality.whole(live.job, text, live.made, live.reason, live.times)
        )

    async def _parse(self, chat: bool, body: bytes) -> Parsed:
        if len(body) < _LARGE:
            return self._read_body(chat, body)
        key = (chat, body)
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = await asyncio.to_thread(self._read_body, chat, body)
            self._parsed[key] = parsed
            while len(self._parsed) > _REMEMBERED:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(key)
        return parsed

    def _read_body(self, chat: bool, body: bytes) -> Parsed:
        request = _object(body)
        ids = _prompt(chat, request)
        options = request.get("stream_options") or {}
        if not isinstance(options, dict):
            raise BadField("stream_options: an object is wanted")
        limit = request.get("max_completion_tokens", request.get("max_tokens"))
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise BadField("max_tokens: a whole number is wanted")
        model = request.get("model")
        return Parsed(
            model=model if isinstance(model, str) else None,
            prompt_tokens=ids.size,
            block_hashes=tuple(tokenizer.prefix_hashes(ids, self._served.block_size)),
            max_tokens=limit,
            ignore_eos=bool(request.get("ignore_eos")),
            stream=bool(request.get("stream")),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
        )

    # Everything else

    def _tool(self, path: str, body: bytes) -> Answer:
        personality = self._personality
        try:
            request = _object(body)
            if path == "/detokenize":
                return personality.detokenized(tokenizer.decode(request.get("tokens") or ()))
            if path == "/tokenize":
                return personality.tokenized(request)
            prompt = tokenizer.apply_template(_messages(request))
            return personality.templated(prompt) or personality.refuse(404)
        except json.JSONDecodeError as problem:
            return personality.bad_json(problem)
        except (BadField, TypeError, AttributeError, ValueError) as problem:
            return personality.refuse(400, str(problem))

    def _page(self, path: str) -> Answer:
        personality, faults, at = self._personality, self._faults, self._pacer.moment()
        now = self._pacer.counters()
        if (lie := faults.find("wrong_gauges", at)) is not None and lie.value is not None:
            now = Counters(*(value * lie.value for value in vars(now).values()))
        if path == "/metrics":
            if faults.find("no_metrics", at) is not None:
                return personality.refuse(404)
            return personality.metrics(now, gauges=faults.find("no_gauges", at) is None)
        return personality.get(path, now) or personality.refuse(404)

    async def _send(self, send: Send, answer: Answer) -> None:
        headers = [*self._headers, *answer.headers]
        if answer.content_type is not None:
            headers.append((b"content-type", answer.content_type.encode()))
        if answer.close:
            headers.append((b"connection", b"close"))
        headers.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _keep_alive(live: Live, silence: float) -> None:
    while not live.done:
        await asyncio.sleep(silence / 4)
        live.comment(clock(), silence)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except UnicodeDecodeError as problem:
        raise BadField(f"the body is no UTF-8: {problem.reason}") from None
    if not isinstance(value, dict):
        raise BadField("the body is no JSON object")
    return value


def _messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise BadField("messages: a list of objects is wanted")
    return messages


def _prompt(chat: bool, request: dict[str, Any]) -> tokenizer.Ids:
    if chat:
        return tokenizer.encode(tokenizer.apply_template(_messages(request)))
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and all(isinstance(i, int) and 0 <= i < 1 << 63 for i in prompt):
        return np.array(prompt, np.uint64)
    raise BadField("prompt: a text or a list of token ids is wanted")
