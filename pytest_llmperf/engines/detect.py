"""Which engine answers: told by answers only it gives, never by a port."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from pytest_llmperf.engines.answers import objects, read_json, read_object
from pytest_llmperf.engines.base import Api
from pytest_llmperf.engines.cards import Card
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.llamacpp import LlamaCpp
from pytest_llmperf.engines.lmstudio import LmStudio
from pytest_llmperf.engines.ollama import Ollama
from pytest_llmperf.engines.page import MetricsPage, ask, try_post
from pytest_llmperf.engines.prometheus import parse
from pytest_llmperf.engines.sglang import SgLang
from pytest_llmperf.engines.tensorrt_llm import TensorRtLlm
from pytest_llmperf.engines.tgi import Tgi
from pytest_llmperf.engines.transformers_serve import TransformersServe
from pytest_llmperf.engines.vllm import Vllm
from pytest_llmperf.model.errors import ConfigError

ENGINES: tuple[type[Generic], ...] = (
    Vllm,
    SgLang,
    LlamaCpp,
    TensorRtLlm,
    Tgi,
    Ollama,
    LmStudio,
    TransformersServe,
    Generic,
)

_OWNERS = {"vllm": Vllm, "sglang": SgLang, "llamacpp": LlamaCpp, "tensorrt_llm": TensorRtLlm}

_TELLING: tuple[tuple[str, type[Generic], Callable[[dict[str, Any]], bool]], ...] = (
    ("/props", LlamaCpp, lambda body: "default_generation_settings" in body),
    ("/server_info", SgLang, lambda body: "max_total_num_tokens" in body),
    ("/get_server_info", SgLang, lambda body: "max_total_num_tokens" in body),
    ("/info", Tgi, lambda body: "max_total_tokens" in body or "max_input_tokens" in body),
    ("/api/v0/models", LmStudio, lambda body: "state" in (objects(body.get("data")) or [{}])[0]),
    ("/api/ps", Ollama, lambda body: isinstance(body.get("models"), list)),
)


def engine_named(name: str) -> type[Generic]:
    """The engine the user names; case and punctuation do not matter.

    Raises:
        ConfigError: there is none of that name.
    """
    wanted = _plain(name)
    for engine in ENGINES:
        if wanted in (_plain(engine.name), engine.__name__.lower()):
            return engine
    names = ", ".join(engine.name for engine in ENGINES)
    raise ConfigError(f"--llm-engine: {name!r} is none of {names}")


async def detect(api: Api, card: Card) -> type[Generic]:
    """Tell the engine by the owner in its model card, else by one round of parallel requests."""
    if card.owned_by in _OWNERS:
        return _OWNERS[card.owned_by]
    page = MetricsPage(api)
    metrics, answers = await asyncio.gather(
        page.fetch(), asyncio.gather(*(ask(api, path) for path, _, _ in _TELLING))
    )
    for (_, engine, tells), text in zip(_TELLING, answers, strict=True):
        if tells(read_object(text)):
            return engine
    if metrics is not None:
        for engine in ENGINES:
            own = tuple(p for p in engine.prefixes if not p.startswith("process_"))
            if own and parse(metrics[1], own).samples:
                return engine
        if any("iterLatencyMS" in entry for entry in objects(read_json(metrics[1]))):
            return TensorRtLlm
    return TransformersServe if await _is_transformers(api, card) else Generic


async def _is_transformers(api: Api, card: Card) -> bool:
    """It alone names a field it does not know, before it looks at the rest of a request."""
    body = {"model": card.id, "messages": [], "llmperf_probe": True}
    status, text = await try_post(api, "/v1/chat/completions", body)
    return status == 422 and "Unexpected fields in the request" in text


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
