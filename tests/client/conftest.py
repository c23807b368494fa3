"""What the client's tests share."""

from __future__ import annotations

import pytest

from pytest_llmperf.client import transport as transport_module


@pytest.fixture
def program_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose kernel stamps nothing."""
    monkeypatch.setattr(transport_module, "kernel_stamps", lambda: False)


@pytest.fixture(params=["auto", "program", "stock"])
def transport(request: pytest.FixtureRequest) -> str:
    """Both transports, and ours with stamps of the kernel and of the program: they must agree on
    everything but the stamps and their cost."""
    if request.param == "program":
        request.getfixturevalue("program_stamps")
        return "auto"
    kind: str = request.param
    return kind
