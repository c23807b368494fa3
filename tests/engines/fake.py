"""An ``Api`` that answers from a table, and the recorded answers of real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmperf.engines.cards import Card, read_cards
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import MetricsPage
from pytest_llmperf.model.result import ServerInfo

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
NOT_FOUND = (404, '{"detail":"Not Found"}')

T = TypeVar("T")
E = TypeVar("E", bound=Generic)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def capture(name: str) -> tuple[int, str]:
    """Status and body of a recorded answer; a file without headers is the body of a 200."""
    text = (CAPTURES / name).read_bytes().decode().replace("\r\n", "\n")
    if not text.startswith("HTTP/"):
        return 200, text
    head, _, body = text.partition("\n\n")
    return int(head.split()[1]), body


class FakeApi:
    """Answers by path: a body (of a 200), a pair, an object (as JSON), an exception, or a list of
    those, one a call and the last one for good. A POST's body can be answered by a function.
    ``asked`` lists the paths, ``posted`` the bodies."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.posted: list[tuple[str, Any]] = []

    async def get(self, path: str) -> tuple[int, str]:
        self.asked.append(path)
        return self._answer(path)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        self.posted.append((path, body))
        answer = self.answers.get(f"POST {path}", NOT_FOUND)
        if callable(answer):
            return 200, json.dumps(answer(body))
        return self._answer(f"POST {path}")

    def _answer(self, key: str) -> tuple[int, str]:
        answer = self.answers.get(key, NOT_FOUND)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return 200, json.dumps(answer)
        return (200, answer) if isinstance(answer, str) else answer


def models(*ids: str, **card: Any) -> dict[str, Any]:
    """A model list."""
    return {"object": "list", "data": [{"id": i, "object": "model", **card} for i in ids]}


def card_of(name: str) -> Card:
    """The first model of a recorded list."""
    cards = read_cards(capture(name)[1])
    assert cards
    return cards[0]


def make(kind: type[E], answers: Mapping[str, Any], card: Card | None = None) -> E:
    """An engine in front of a fake server."""
    api = FakeApi(answers)
    return kind(api, card or Card("m"), MetricsPage(api))


def describe(
    kind: type[Generic], answers: Mapping[str, Any], card: Card | None = None
) -> ServerInfo:
    return run(make(kind, answers, card).describe())
