"""Whether the server that answers now is the one that was measured so far."""

from __future__ import annotations

from pytest_llmperf.engines.answers import complaint
from pytest_llmperf.engines.base import Api, Engine
from pytest_llmperf.engines.cards import read_cards
from pytest_llmperf.engines.patient import PatientApi
from pytest_llmperf.model.errors import ServerDied
from pytest_llmperf.model.result import ServerInfo

_NOT_READY = (502, 503, 504)


async def find_change(api: Api, engine: Engine, known: ServerInfo) -> str:
    """What is different about the server, for people; empty if nothing is known to be.

    Raises:
        ServerDied: it does not serve the model any more, or not yet again.
        ServerUnusable: it does not answer at all.
    """
    status, text = await PatientApi(api).get("/v1/models")
    if status in _NOT_READY:
        raise ServerDied(f"it answers HTTP {status}: {complaint(text)}")
    cards = read_cards(text) if status == 200 else None
    if cards and not any(known.model in card.names for card in cards):
        ids = ", ".join(card.id for card in cards[:3])
        raise ServerDied(f"it serves {ids} now, no longer {known.model}")
    now = await engine.describe()
    if known.version and now.version and known.version != now.version:
        return f"its version is {now.version} now, it was {known.version}"
    if known.started and now.started and known.started != now.started:
        return "its process is another one"
    return ""
