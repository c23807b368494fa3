"""The real llama.cpp server, where it is installed."""

from __future__ import annotations

import os

import pytest

from tests.support.llamacpp import is_installed


@pytest.fixture(scope="session")
def llamacpp_installed() -> None:
    """Skips without the engine; under LLMPERF_REQUIRE_ENGINES, as in CI, that is a failure."""
    if not is_installed():
        skip = pytest.fail if os.environ.get("LLMPERF_REQUIRE_ENGINES") else pytest.skip
        skip("llama.cpp is not installed: python -m tests.support.llamacpp")
