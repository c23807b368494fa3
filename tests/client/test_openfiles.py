"""Many streams need many open files; common soft limits stop at 1,024."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_llmperf.client.openfiles import SPARE, allow_connections
from pytest_llmperf.model.errors import ServerUnusable

resource = pytest.importorskip("resource")


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit, under a soft one of 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft_limit() -> int:
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def test_the_limit_rises_with_the_streams_and_never_falls(hard: int) -> None:
    allow_connections(100)
    assert soft_limit() == 1024
    allow_connections(2000)
    assert soft_limit() == 2000 + SPARE
    allow_connections(100)
    assert soft_limit() == 2000 + SPARE


def test_what_the_system_does_not_allow_is_said(hard: int) -> None:
    """With the limit, and what else there is to do."""
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system has no limit")
    with pytest.raises(ServerUnusable, match=rf"allows {hard:,}.*--llm-load"):
        allow_connections(hard)
    assert soft_limit() == 1024
