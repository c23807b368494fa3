"""Whatever a server answers, engines neither crash nor wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytest_llmperf.engines.page as paging
from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.engines.cards import Card, read_cards
from pytest_llmperf.engines.detect import ENGINES, detect
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import MetricsPage
from pytest_llmperf.engines.vllm import Vllm
from pytest_llmperf.model.settings import Connection
from pytest_llmperf.server.connect import connect
from tests.engines.fake import FakeApi, models, run
from tests.support.scripted import Reply, Request, ScriptedServer

KEYS = st.sampled_from(
    """
    version context_length max_total_num_tokens internal_states dp_size memory_usage
    token_capacity default_generation_settings n_ctx total_slots params models details
    data id state max_batch_total_tokens max_total_tokens kvCacheStats usedNumBlocks
    maxNumBlocks numActiveRequests iterLatencyMS count tokens prompt root aliases
    max_model_len
    """.split()  # noqa: SIM905
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
BODIES = JSON.map(json.dumps) | st.text(max_size=30)


class SameAnswer(FakeApi):
    """The same answer on every path, or another for each."""

    def __init__(self, bodies: list[str]) -> None:
        super().__init__({})
        self._bodies = bodies
        self.answers = defaultdict(self._next)

    def _next(self) -> str:
        return self._bodies[len(self.answers) % len(self._bodies)]

    def _answer(self, key: str) -> tuple[int, str]:
        return 200, self.answers[key]

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        return self._answer(path)


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
@given(bodies=st.lists(BODIES, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_no_answer_crashes_an_engine(kind: type[Generic], bodies: list[str]) -> None:
    """Its numbers are positive or unknown."""
    api = SameAnswer(bodies)
    engine = kind(api, Card("m"), MetricsPage(api))

    async def go() -> None:
        info = await engine.describe()
        for number in (info.kv_tokens, info.max_num_seqs, info.max_model_len):
            assert number is None or number > 0
        await engine.gauges()
        for prompt in ("x", [{"role": "user", "content": "x"}]):
            count = await engine.count_tokens(prompt)
            assert count is None or count > 0
        await engine.abort("r")

    run(go())


@given(BODIES)
@settings(deadline=None)
def test_no_answer_crashes_the_list_of_models_or_the_detection(body: str) -> None:
    cards = read_cards(body)
    assert cards is None or all(card.id for card in cards)
    assert run(detect(SameAnswer([body]), Card("m"))) in ENGINES


def test_deeply_nested_json_is_no_answer() -> None:
    assert read_cards("[" * 100_000) is None
    assert read_cards('{"data":' * 100_000) is None


def test_what_is_optional_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that never answers what it does not know costs one short limit in all."""
    monkeypatch.setattr(paging, "_PATIENCE_S", 0.2)

    class Silent(FakeApi):
        async def get(self, path: str) -> tuple[int, str]:
            if path not in self.answers:
                await asyncio.sleep(60)
            return await super().get(path)

    began = time.monotonic()
    found = run(connect(Silent({"/health": "", "/v1/models": models("m")})))
    assert found.info.engine == "openai"
    assert time.monotonic() - began < 30


def test_metrics_elsewhere_are_read_with_the_key_and_after_a_redirect() -> None:
    """Another port, a mounted application that redirects to its root, the same key."""

    async def redirect(request: Request, reply: Reply) -> None:
        await reply.respond(307, b"", Location="/metrics/")

    async def metrics(request: Request, reply: Reply) -> None:
        assert request.headers["authorization"] == "Bearer k"
        await reply.respond(200, 'vllm:num_requests_running{engine="0"} 3\n')

    async def listed(request: Request, reply: Reply) -> None:
        await reply.respond(200, models("m", owned_by="vllm"))

    async def go(server: str, elsewhere: str) -> None:
        api = ServerApi(Connection(server, api_key="k", metrics_url=f"{elsewhere}/metrics"))
        try:
            found = await connect(api)
            gauges = await found.engine.gauges()
            assert gauges is not None
            assert gauges.running == 3
            assert isinstance(found.engine, Vllm)
            assert not found.info.notes
        finally:
            await api.aclose()

    with (
        ScriptedServer({"/v1/models": listed}) as server,
        ScriptedServer({"/metrics": redirect, "/metrics/": metrics}) as elsewhere,
    ):
        run(go(server.url, elsewhere.url))
