"""From a URL to a server that is ready, with its model, its engine and what it can hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.client.http import Unreachable
from pytest_llmperf.engines.answers import complaint, read_json, whole
from pytest_llmperf.engines.base import Api, Engine
from pytest_llmperf.engines.cards import Card, choose, read_cards
from pytest_llmperf.engines.detect import detect, engine_named
from pytest_llmperf.engines.page import MetricsPage
from pytest_llmperf.engines.patient import PatientApi
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.model.result import ServerInfo

LOADING_S = 600.0
"""A server that says it is loading is waited for this long, unless told otherwise."""
_MODELS_KEPT = 100
_HOPELESS = ("dns", "no-tls", "not-http")
_HINTS = {
    "lost": "is it https://, or another port? check --llm-url",
    "not-http": "is it https://, or another port? check --llm-url",
    "timeout": "check host and port in --llm-url, and the server's log",
    "network": "check --llm-url",
}
"""Cause -> what to do, where the words of the failure do not say."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 2.0

_TOLD_TEXTS = {"engine_version": "version", "quantization": "quantization", "model": "model_root"}
_TOLD_COUNTS = ("max_model_len", "max_num_seqs", "kv_tokens")


@dataclass(frozen=True)
class Connected:
    """A server that can be measured."""

    engine: Engine
    info: ServerInfo


async def connect(
    api: Api,
    *,
    model: str | None = None,
    engine: str | None = None,
    wait_s: float | None = None,
    kv_tokens: int | None = None,
    run_info: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Connected:
    """Wait until the server is ready; find its model, engine and limits.

    Args:
        api: calls to the server.
        model: ``--llm-model``, when the server serves several.
        engine: ``--llm-engine``, instead of detecting it.
        wait_s: seconds to wait for a server that refuses connections; None: fail at once. One
            that answers 503 is waited for in any case, this long or ``LOADING_S``.
        kv_tokens: ``--llm-kv-tokens``; stands in for what the server says.
        run_info: ``--llm-run-info``; fills what the server does not tell.
        say: told once what is being waited for.

    Raises:
        ConfigError: the key, the model or an option is wrong.
        ServerUnusable: unreachable, or not an OpenAI-compatible server.
    """
    named = engine_named(engine) if engine is not None else None
    patient = PatientApi(api)
    status, text = await _wait_until_ready(patient, wait_s, say)
    cards = await _list_models(api, status, text, model)
    card = choose(cards, model)
    kind = named or await detect(patient, card)
    found = kind(api, card, MetricsPage(api))
    info = await found.describe()
    if info.started is not None and await _answers_in_turn(found, info.started):
        found.page.give_up("several servers answer here in turn")
        info = info.model_copy(
            update={
                "started": None,
                "kv_tokens": None,
                "kv_source": "several servers answer here in turn, each with its own",
                "notes": [*info.notes, "several servers answer at this address in turn: gauges "
                          "and limits of one say nothing of all, so they are not used"],
            }
        )  # fmt: skip
    info = info.model_copy(update={"models": [card.id for card in cards[:_MODELS_KEPT]]})
    return Connected(found, _fill(info, kv_tokens, run_info or {}))


async def _wait_until_ready(
    api: Api, wait_s: float | None, say: Callable[[str], None]
) -> tuple[int, str]:
    """Answer of ``/v1/models`` once neither it nor ``/health`` says that the server loads."""
    began = time.monotonic()
    pause, said = _FIRST_PAUSE_S, False
    # a gateway in front of a server that starts; without --llm-wait it is one that is broken
    unready = (503,) if wait_s is None else (502, 503, 504)
    while True:
        waited = time.monotonic() - began
        try:
            (health, health_text), (status, text) = await asyncio.gather(
                api.get("/health"), api.get("/v1/models")
            )
        except Unreachable as error:
            reason, limit = str(error), wait_s or 0.0
            if error.cause == "tls":
                raise ServerUnusable(f"{error} (--llm-ca FILE, --llm-insecure)") from error
            if error.cause in _HOPELESS or waited >= limit:
                if (hint := _HINTS.get(error.cause)) is None:
                    raise
                raise ServerUnusable(f"{error}; {hint}") from error
        else:
            if health != 503 and status not in unready:
                return status, text
            bad = (status, text) if status in unready else (health, health_text)
            reason = f"HTTP {bad[0]}: {complaint(bad[1])}"
            limit = LOADING_S if wait_s is None else wait_s
            if waited >= limit:
                raise ServerUnusable(
                    f"the server was not ready after {waited:.0f} s ({reason}); "
                    "look at its log, or give it longer with --llm-wait SECONDS"
                )
        if not said:
            say(f"waiting up to {limit:.0f} s for the server ({reason})")
            said = True
        await asyncio.sleep(max(min(pause, limit - waited), 0.01))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _list_models(api: Api, status: int, text: str, wanted: str | None) -> list[Card]:
    if status in (401, 403):
        raise ConfigError(
            f"the server wants a key it accepts (HTTP {status}: {complaint(text)}); "
            "set the key with --llm-api-key or LLMPERF_API_KEY"
        )
    cards = read_cards(text) if status == 200 else None
    if cards is not None:
        return cards
    if wanted is not None and status != 200 and await _completes(api, wanted):
        return [Card(wanted)]
    said = complaint(text)[:120]
    raise ServerUnusable(
        "this URL does not answer /v1/models like an OpenAI server "
        f"(HTTP {status}: {said}); check --llm-url: it is the address in front of /v1"
    )


async def _completes(api: Api, model: str) -> bool:
    """Whether there is a chat endpoint although no model list: it objects to an empty chat."""
    status, text = await api.post("/v1/chat/completions", {"model": model, "messages": []})
    return status in (200, 400, 422) and isinstance(read_json(text), dict)


async def _answers_in_turn(engine: Engine, started: float) -> bool:
    """Whether simultaneous connections reach processes with different start times."""
    scrapes = await asyncio.gather(*(engine.gauges() for _ in range(3)))
    return any(s and s.started is not None and s.started != started for s in scrapes)


def _fill(info: ServerInfo, kv_tokens: int | None, run_info: Mapping[str, str]) -> ServerInfo:
    update: dict[str, Any] = {}
    for key, name in _TOLD_TEXTS.items():
        if getattr(info, name) is None and run_info.get(key):
            update[name] = run_info[key]
    for name in _TOLD_COUNTS:
        if getattr(info, name) is None and name in run_info:
            update[name] = whole(run_info[name])
            if update[name] is None:
                raise ConfigError(
                    f"--llm-run-info: {name}={run_info[name]!r} is not a whole number"
                )
    if "kv_tokens" in update:
        update["kv_source"] = "--llm-run-info"
    if kv_tokens is not None:
        update |= {"kv_tokens": kv_tokens, "kv_source": "--llm-kv-tokens"}
    return info.model_copy(update=update)
