"""vLLM on the wire, as captured from 0.32."""

from __future__ import annotations

import json
from typing import Any

from pytest_llmperf.sim import tokenizer
from pytest_llmperf.sim.personalities.vllm_metrics import render_metrics
from pytest_llmperf.sim.wire import (
    Answer,
    Counters,
    Headers,
    Job,
    Served,
    Stream,
    Times,
    answer,
    dump,
)

_NAMES = {
    400: "BadRequestError",
    429: "Too Many Requests",
    500: "InternalServerError",
    503: "Service Unavailable",
}
_WORDS = {
    429: "Too many requests.",
    500: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    503: "The engine is currently busy and cannot accept new requests. Please try again later or "
    "on a different instance.",
}


def _usage(job: Job, made: int, final: bool) -> dict[str, Any]:
    made = round(made * job.usage_factor)
    usage: dict[str, Any] = {
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + made,
        "completion_tokens": made,
    }
    if final:
        usage["prompt_tokens_details"] = {"cached_tokens": job.cached_tokens}
    return usage


class VllmStream:
    """One streamed answer. Chunks are filled into a form that is prepared once per request."""

    def __init__(self, job: Job, fingerprint: str) -> None:
        self._job = job
        self._fingerprint = dump(fingerprint)
        kind = "chat.completion.chunk" if job.chat else "text_completion"
        head = dump({"id": job.id, "object": kind, "created": job.created, "model": job.model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._continuous = job.continuous_usage and job.usage
        text = b'"delta":{"content":"%b"}' if job.chat else b'"text":"%b"'
        after = b'"token_ids":null}]'
        if not job.chat:
            after = b'"stop_reason":null,"prompt_token_ids":null,' + after
        self._form = self._head.replace(
            b"%", b"%%"
        ) + b'{"index":0,%b,"logprobs":null,"finish_reason":null,%b' % (text, after)
        self._form += b"%b}\n\n"

    def _usage(self, made: int) -> bytes:
        if not self._continuous:
            return b""
        job = self._job
        made = round(made * job.usage_factor)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            job.prompt_tokens,
            job.prompt_tokens + made,
            made,
            b',"completion_tokens_details":null' if job.chat else b"",
        )

    def open(self) -> bytes:
        if not self._job.chat:
            return b""
        return b"%b%b%b%b" % (
            self._head,
            b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]',
            self._usage(0),
            b',"prompt_token_ids":null,"prompt_text":null}\n\n',
        )

    def chunk(self, pieces: list[bytes], made: int) -> bytes:
        return self._form % (b"".join(pieces), self._usage(made))

    def close(self, pieces: list[bytes], made: int, reason: str, times: Times) -> bytes:
        job = self._job
        finish = b'"finish_reason":"%b"' % reason.encode()
        if job.chat:
            finish += b',"stop_reason":null'
        last = self.chunk(pieces, made).replace(b'"finish_reason":null', finish, 1)
        end = b',"system_fingerprint":%b}\n\n' % self._fingerprint
        if job.include_usage and job.usage:
            usage = dump(_usage(job, made, final=True))
            last += b'%b],"usage":%b%b' % (self._head, usage, end)
        else:
            last = last[:-3] + end
        return last + b"data: [DONE]\n\n"


class Vllm:
    """vLLM's API server."""

    headers: Headers = ((b"server", b"uvicorn"),)
    stream_headers: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
    headers_wait = False
    checks_model = True
    id_prefix = ("cmpl", "chatcmpl")

    def __init__(self, served: Served) -> None:
        self._served = served
        self._fingerprint = f"vllm-{served.version}-simulated"

    def needs_key(self, path: str) -> bool:
        return path.startswith("/v1")

    def stream(self, job: Job) -> Stream:
        return VllmStream(job, self._fingerprint)

    def whole(self, job: Job, text: bytes, made: int, reason: str, times: Times) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if job.chat:
            choice["message"] = {
                "role": "assistant",
                "content": text.decode(),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
        else:
            choice["text"] = text.decode()
        choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": None}
        choice |= {"token_ids": None, "routed_experts": None}
        if not job.chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": None}
        body = {
            "id": job.id,
            "object": "chat.completion" if job.chat else "text_completion",
            "created": job.created,
            "model": job.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": _usage(job, made, final=True) | {"completion_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        if job.chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        if not job.usage:
            body["usage"] = None
        return dump(body)

    def error_event(self, status: int, message: str) -> bytes:
        # this one object is written with spaces by vLLM, unlike all others
        error = {"message": message or _WORDS[status], "type": _NAMES[status], "param": None}
        return (
            b"data: %b\n\ndata: [DONE]\n\n"
            % json.dumps({"error": error | {"code": status}}).encode()
        )

    def _error(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> Answer:
        error = {"message": message, "type": kind, "param": param, "code": status}
        return answer({"error": error}, status)

    def refuse(self, status: int, message: str = "") -> Answer:
        if status == 401:
            return answer({"error": "Unauthorized"}, 401)
        if status in (404, 405):
            return answer(
                {"detail": "Not Found" if status == 404 else "Method Not Allowed"}, status
            )
        return self._error(status, message or _WORDS[status], _NAMES[status])

    def bad_json(self, problem: json.JSONDecodeError) -> Answer:
        message = (
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{problem.pos}', "
            f"'msg': 'JSON decode error', 'input': '<dict of 0 items>', "
            f"'ctx': {{'error': '{problem.msg}'}}}}"
        )
        return self._error(400, message, "Bad Request", f"body.{problem.pos}")

    def unknown_model(self, model: str) -> Answer:
        message = f"The model `{model}` does not exist. Valid aliases: {self._served.model}."
        return self._error(404, message, "NotFoundError", "model")

    def reject_length(self, prompt_tokens: int, max_tokens: int | None) -> Answer | None:
        limit = self._served.max_model_len
        if max_tokens is not None and max_tokens < 1:
            problem = f"max_tokens must be at least 1, got {max_tokens}."
            param, value = "max_tokens", max_tokens
        elif max_tokens is not None and max_tokens > limit:
            problem = (
                f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens."
            )
            param, value = "max_tokens", max_tokens
        elif prompt_tokens + (max_tokens or 1) > limit:
            # the count is cut off where the limit is passed: not the prompt's real length
            param, value = "input_tokens", min(prompt_tokens, limit + 1)
            asked = (
                f"your prompt contains at least {value} input tokens, which exceeds this limit "
                "even without any output tokens. Please reduce the length of the input prompt."
                if prompt_tokens > limit
                else f"you requested {max_tokens or 1} output tokens and your prompt contains "
                f"{value} input tokens, for a total of {value + (max_tokens or 1)} tokens. Please "
                "reduce the length of the input prompt or the number of requested output tokens."
            )
            problem = f"This model's maximum context length is {limit} tokens. However, {asked}"
        else:
            return None
        return self._error(
            400, f"{problem} (parameter={param}, value={value})", "BadRequestError", param
        )

    def get(self, path: str, now: Counters) -> Answer | None:
        served = self._served
        if path in ("/health", "/ping"):
            return Answer(200, content_type=None)
        if path == "/version":
            return answer({"version": served.version})
        if path == "/load":
            return answer({"server_load": now.running + now.waiting})
        if path == "/v1/models":
            return answer({"object": "list", "data": [self._model()]})
        return None

    def _model(self) -> dict[str, Any]:
        served = self._served
        permission = {
            "id": "modelperm-simulated",
            "object": "model_permission",
            "created": served.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": served.model,
            "object": "model",
            "created": served.created,
            "owned_by": "vllm",
            "llmperf_simulated": served.profile,
            "root": served.root,
            "parent": None,
            "max_model_len": served.max_model_len,
            "permission": [permission],
        }

    def metrics(self, now: Counters, gauges: bool) -> Answer:
        return render_metrics(self._served, now, gauges)

    def tokenized(self, body: dict[str, Any]) -> Answer:
        if "messages" in body:
            text = tokenizer.apply_template(body["messages"])
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            return self._error(
                400,
                "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'prompt'), "
                "'msg': 'Field required'}",
                "Bad Request",
            )
        ids = tokenizer.encode(text)
        return answer(
            {
                "count": ids.size,
                "max_model_len": self._served.max_model_len,
                "tokens": ids.tolist(),
                "token_strs": None,
            }
        )

    def detokenized(self, text: str) -> Answer:
        return answer({"prompt": text})

    def templated(self, prompt: str) -> Answer | None:
        return None
