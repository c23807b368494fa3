"""The real llama.cpp and vLLM servers, where they are installed."""

from __future__ import annotations

import os

import pytest

from tests.support import llamacpp, vllm


@pytest.fixture(scope="session")
def llamacpp_installed() -> None:
    """Skips without the engine; under LLMPERF_REQUIRE_ENGINES, as in CI, that is a failure."""
    if not llamacpp.is_installed():
        skip = pytest.fail if os.environ.get("LLMPERF_REQUIRE_ENGINES") else pytest.skip
        skip("llama.cpp is not installed: python -m tests.support.llamacpp")


@pytest.fixture(scope="session")
def vllm_installed(pytestconfig: pytest.Config) -> None:
    """Skips without vLLM, and unless it was asked for: each start of it takes most of a minute."""
    if "vllm" not in pytestconfig.option.markexpr:
        pytest.skip("vLLM takes minutes: pytest -m vllm")
    if not vllm.is_installed():
        pytest.skip("vLLM is not installed: python -m tests.support.vllm")
