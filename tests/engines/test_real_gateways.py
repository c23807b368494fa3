"""llama.cpp behind real gateways: measured as it is without them, or said what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_llmperf.model.result import Status
from tests.engines.gateway_table import Seen, look_behind
from tests.support.gateways import GATEWAYS, Gateway
from tests.support.llamacpp import LlamaServer

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("llamacpp_installed")]

PASSES_ALL_ON = {"nginx", "vllm-router"}
"""Gateways behind which the server's own pages answer."""


@pytest.fixture(scope="module")
def server(llamacpp_installed: None) -> Iterator[str]:
    """Two slots that split 8K."""
    with LlamaServer(n_ctx=8192, slots=2) as started:
        yield started.url


@pytest.fixture(params=GATEWAYS)
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """Each of them; skipped where it is not installed, a failure where CI asks for it."""
    found = GATEWAYS[request.param]
    if not found.is_installed:
        skip = pytest.fail if os.environ.get("LLMPERF_REQUIRE_GATEWAYS") else pytest.skip
        skip(f"{found.name} is not installed: python -m tests.support.gateways")
    return found


KEEPS_RUNNING = {"vllm-router"}
"""Gateways that let the server go on with a request whose client has left, so that a cell may find
it busy."""


def assert_whole(gateway: Gateway, seen: Seen) -> None:
    """The cell is valid, and its rate and its time between tokens tell the same."""
    cell = seen.cell
    if gateway.name in KEEPS_RUNNING and cell.status is Status.INVALID:
        assert cell.reason.startswith("other traffic on the server: ")
        return
    assert cell.status is Status.VALID, cell.reason
    # two streams without a pause make as many tokens in all as the time between theirs says,
    # unless the gateway hides that time
    if "buffered" in {notice.code for notice in cell.warnings}:
        assert cell.itl_ms is None
    else:
        assert cell.itl_ms is not None
        assert cell.total_tok_s == pytest.approx(2000 / cell.itl_ms, rel=0.25)


def test_a_gateway_is_measured_through(gateway: Gateway, server: str) -> None:
    """What it hides is said; what it passes on is used."""
    seen = look_behind(gateway, server)
    assert_whole(gateway, seen)
    info = seen.run.server
    assert info is not None
    assert info.model == "smol"
    if gateway.name in PASSES_ALL_ON:
        assert info.engine == "llama.cpp"
    else:
        assert info.engine == "openai"
        assert any("no metrics" in note for note in info.notes)


def test_metrics_that_live_elsewhere_say_what_is_behind_it(gateway: Gateway, server: str) -> None:
    """Given ``--llm-metrics-url`` the engine is known, and the load is watched."""
    seen = look_behind(gateway, server, f"--llm-metrics-url={server}/metrics")
    assert_whole(gateway, seen)
    assert seen.run.server is not None
    assert seen.run.server.engine == "llama.cpp"
    assert not any("no metrics" in note for note in seen.run.server.notes)
