"""A host without a GPU, told by its processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.server import host


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_count_cores", lambda: 3)


def test_the_processor_and_its_cores(tmp_path: Path) -> None:
    """Its name stands there once a core."""
    info = tmp_path / "cpuinfo"
    core = "processor : 0\nmodel name\t: AMD EPYC 9B14 96-Core Processor\nflags : fpu\n\n"
    info.write_text(core * 96)
    assert host.read_cpu(info) == "AMD EPYC 9B14 96-Core Processor, 3 cores"


def test_a_system_that_does_not_list_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python knows of it, if anything."""
    monkeypatch.setattr(host.platform, "processor", lambda: "arm")
    assert host.read_cpu(tmp_path / "none") == "arm, 3 cores"
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "")
    assert host.read_cpu(tmp_path / "none") == "unknown processor, 3 cores"
