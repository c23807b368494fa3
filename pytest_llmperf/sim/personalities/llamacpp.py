"""llama.cpp's server on the wire, as captured from a build of October 2026."""

from __future__ import annotations

import json
from typing import Any

from pytest_llmperf.sim import tokenizer
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
    samples,
)

_FINGERPRINT = "b0-simulated"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}
_WORDS = {
    401: "Invalid API Key",
    404: "File Not Found",
    405: "File Not Found",
    429: "Too many requests",
    500: "Context size has been exceeded.",
    503: "Loading model",
}


_SERIES = (
    ("prompt_tokens_total", "counter", "computed_tokens",
     "Number of prompt tokens processed, excluding cached tokens"),
    ("prompt_tokens_cached_total", "counter", "prefix_hits",
     "Number of prompt tokens reused from the cache"),
    ("prompt_seconds_total", "counter", "prefill_s", "Total time spent processing prompts"),
    ("tokens_predicted_total", "counter", "generated_tokens",
     "Number of generation tokens processed"),
    ("tokens_predicted_seconds_total", "counter", "decode_s",
     "Total time spent generating tokens"),
    ("n_decode_total", "counter", "steps",
     "Total number of llama_decode() calls, excluding speculative decoding and multimodal "
     "decoding"),
    ("n_tokens_max", "counter", "longest",
     "Largest observed sequence length (prompt + generation)"),
    ("spec_decode_num_draft_tokens_total", "counter", "draft_tokens",
     "Speculative: Total draft tokens generated"),
    ("spec_decode_num_accepted_tokens_total", "counter", "accepted",
     "Speculative: Total draft tokens accepted by the target model"),
    ("spec_decode_num_drafts_total", "counter", "drafts",
     "Speculative: Total speculative decoding verification steps"),
    ("prompt_tokens_seconds", "gauge", "prompt_tok_s",
     "Average prompt throughput in tokens/s"),
    ("predicted_tokens_seconds", "gauge", "decode_tok_s",
     "Average generation throughput in tokens/s"),
    ("requests_processing", "gauge", "running", "Number of requests processing"),
    ("requests_deferred", "gauge", "waiting", "Number of requests deferred"),
    ("n_busy_slots_per_decode", "gauge", "busy_slots",
     "Average number of busy slots per llama_decode() call"),
)  # fmt: skip
"""Name, type, field of `Counters`, help."""


def _usage(job: Job, made: int) -> dict[str, Any]:
    made = round(made * job.usage_factor)
    return {
        "completion_tokens": made,
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
    }


def _timings(job: Job, made: int, times: Times) -> dict[str, Any]:
    # decoding starts with the second token: the first comes out of the prompt's evaluation
    prompt, steps = job.prompt_tokens - job.cached_tokens, max(made - 1, 1)
    prompt_ms, predicted_ms = max(times.prefill * 1e3, 1e-3), max(times.decode * 1e3, 1e-3)
    return {
        "cache_n": job.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(prompt, 1),
        "prompt_per_second": prompt / prompt_ms * 1e3,
        "predicted_n": made,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps,
        "predicted_per_second": steps / predicted_ms * 1e3,
    }


class LlamaCppStream:
    """One streamed answer; chunks are filled into a form that is prepared once per request."""

    def __init__(self, job: Job) -> None:
        self._job = job
        facts = {"created": job.created, "model": job.model, "system_fingerprint": _FINGERPRINT}
        if job.chat:
            facts |= {"id": job.id, "object": "chat.completion.chunk"}
            choice = b'{"finish_reason":null,"index":0,"delta":{"content":"%b"}}'
        else:
            facts |= {"object": "text_completion", "id": job.id}
            choice = b'{"text":"%b","index":0,"logprobs":null,"finish_reason":null}'
        self._facts = dump(facts)[1:-1]
        self._form = b'data: {"choices":[%b],%b}\n\n' % (choice, self._facts.replace(b"%", b"%%"))

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        tail = b"," + dump(more)[1:-1] if more else b""
        return b'data: {"choices":%b,%b%b}\n\n' % (dump(choices), self._facts, tail)

    def open(self) -> bytes:
        if not self._job.chat:
            return b""
        delta = {"role": "assistant", "content": None}
        return self._event([{"finish_reason": None, "index": 0, "delta": delta}], {})

    def chunk(self, pieces: list[bytes], made: int) -> bytes:
        # an event a token, also where a step yields several
        return b"".join([self._form % piece for piece in pieces])

    def close(self, pieces: list[bytes], made: int, reason: str, times: Times) -> bytes:
        job = self._job
        last = self.chunk(pieces, made)
        timings = {"timings": _timings(job, made, times)}
        usage = {"usage": _usage(job, made)} if job.usage else {}
        if not job.chat:
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": reason}
            last += self._event([choice], usage | timings)
        else:
            finish: list[dict[str, Any]] = [{"finish_reason": reason, "index": 0, "delta": {}}]
            if job.include_usage:
                last += self._event(finish, {}) + self._event([], usage | timings)
            else:
                last += self._event(finish, timings)
        return last + b"data: [DONE]\n\n"


class LlamaCpp:
    """llama.cpp's ``llama-server``."""

    headers: Headers = (
        (b"server", b"llama.cpp"),
        (b"access-control-allow-origin", b""),
        (b"keep-alive", b"timeout=5, max=100"),
    )
    stream_headers: Headers = (
        (b"x-accel-buffering", b"no"),
        (b"content-type", b"text/event-stream"),
    )
    headers_wait = True
    checks_model = False
    id_prefix = ("chatcmpl", "chatcmpl")

    def __init__(self, served: Served) -> None:
        self._served = served

    def needs_key(self, path: str) -> bool:
        return path not in ("/health", "/v1/health")

    def stream(self, job: Job) -> Stream:
        return LlamaCppStream(job)

    def whole(self, job: Job, text: bytes, made: int, reason: str, times: Times) -> bytes:
        if job.chat:
            message = {"role": "assistant", "content": text.decode()}
            choice: dict[str, Any] = {"finish_reason": reason, "index": 0, "message": message}
        else:
            choice = {"text": text.decode(), "index": 0, "logprobs": None, "finish_reason": reason}
        body: dict[str, Any] = {
            "choices": [choice],
            "created": job.created,
            "model": job.model,
            "system_fingerprint": _FINGERPRINT,
            "object": "chat.completion" if job.chat else "text_completion",
        }
        if job.usage:
            body["usage"] = _usage(job, made)
        return dump(body | {"id": job.id, "timings": _timings(job, made, times)})

    def error_event(self, status: int, message: str) -> bytes:
        error = {"code": status, "message": message or _WORDS[status], "type": _KINDS[status]}
        return b"data: %b\n\n" % dump({"error": error})

    def refuse(self, status: int, message: str = "") -> Answer:
        error: dict[str, Any] = {"message": message or _WORDS[status], "type": _KINDS[status]}
        status = 404 if status == 405 else status
        error = {"code": status, **error} if status == 400 else {**error, "code": status}
        return answer({"error": error}, status, close=True)

    def bad_json(self, problem: json.JSONDecodeError) -> Answer:
        return self.refuse(
            400,
            f"[json.exception.parse_error.101] parse error at line {problem.lineno}, column "
            f"{problem.colno}: syntax error while parsing value - {problem.msg}",
        )

    def unknown_model(self, model: str) -> Answer:
        raise AssertionError("llama.cpp takes any model name")

    def reject_length(self, prompt_tokens: int, max_tokens: int | None) -> Answer | None:
        limit = self._served.max_model_len
        if prompt_tokens < limit:
            return None
        error = {
            "code": 400,
            "message": f"request ({prompt_tokens} tokens) exceeds the available context size "
            f"({limit} tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": prompt_tokens,
            "n_ctx": limit,
        }
        return answer({"error": error}, 400, close=True)

    def get(self, path: str, now: Counters) -> Answer | None:
        served = self._served
        if path in ("/health", "/v1/health"):
            return answer({"status": "ok"})
        if path in ("/v1/models", "/models"):
            return answer(self._models())
        if path == "/props":
            return answer(self._props())
        if path == "/slots":
            slots = [
                {
                    "id": i,
                    "n_ctx": served.max_model_len,
                    "speculative": now.drafts > 0,
                    "is_processing": i < now.running,
                }
                for i in range(served.slots)
            ]
            return answer(slots)
        return None

    def _models(self) -> dict[str, Any]:
        served = self._served
        old = {
            "name": served.model,
            "model": served.model,
            "modified_at": "",
            "size": "",
            "digest": "",
            "type": "model",
            "description": "",
            "tags": [""],
            "capabilities": ["completion"],
            "parameters": "",
            "details": {
                "parent_model": "",
                "format": "gguf",
                "family": "",
                "families": [""],
                "parameter_size": "",
                "quantization_level": "",
            },
        }
        new = {
            "id": served.model,
            "aliases": [served.model],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": served.created,
            "owned_by": "llamacpp",
            "llmperf_simulated": served.profile,
            "meta": {
                "vocab_type": 2,
                "n_vocab": 1 << 40,
                "n_ctx": served.max_model_len,
                "n_ctx_train": served.max_model_len,
                "n_embd": 1,
                "n_params": 1,
                "size": 1,
                "ftype": "simulated",
            },
        }
        return {"models": [old], "object": "list", "data": [new]}

    def _props(self) -> dict[str, Any]:
        served = self._served
        return {
            "default_generation_settings": {
                "params": {"temperature": 0.8, "top_p": 0.95, "max_tokens": -1, "n_predict": -1},
                "n_ctx": served.max_model_len,
            },
            "total_slots": served.slots,
            "model_alias": served.model,
            "model_ftype": "simulated",
            "model_path": served.root,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": True,
            "endpoint_metrics": True,
            "ui": False,
            "chat_template": "simulated",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "build_info": _FINGERPRINT,
            "is_sleeping": False,
        }

    def metrics(self, now: Counters, gauges: bool) -> Answer:
        series = [
            (f"llamacpp:{name}", kind, text, "", round(getattr(now, attribute), 6))
            for name, kind, attribute, text in _SERIES
            if gauges
        ]
        start = (b"process-start-time-unix", b"%d" % self._served.created)
        return Answer(200, samples(series), "text/plain; version=0.0.4", (start,))

    def tokenized(self, body: dict[str, Any]) -> Answer:
        # a missing field is no error there: an empty list
        content = body.get("content")
        ids = tokenizer.encode(content if isinstance(content, str) else "").tolist()
        if body.get("with_pieces"):
            pieces = [{"id": i, "piece": tokenizer.decode([i])} for i in ids]
            return answer({"tokens": pieces})
        return answer({"tokens": ids})

    def detokenized(self, text: str) -> Answer:
        return answer({"content": text})

    def templated(self, prompt: str) -> Answer | None:
        return answer({"prompt": prompt})
