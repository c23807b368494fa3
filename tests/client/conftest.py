"""What the client's tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["auto", "stock"])
def transport(request: pytest.FixtureRequest) -> str:
    """Both transports: they must agree on everything but their cost."""
    kind: str = request.param
    return kind
