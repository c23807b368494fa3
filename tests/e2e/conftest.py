"""A user's project to run the shipped perf tests in."""

from __future__ import annotations

# httpx imports these late, and maps their errors: runs inside this process must share them
import anyio._backends._asyncio  # noqa: F401
import h11  # noqa: F401
import httpcore  # noqa: F401
import pytest

from tests.e2e.project import ROOT


@pytest.fixture
def perf(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A fresh folder with ``perf_tests/``, free of the environment of whoever runs this."""
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "LLMPERF_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    folder = pytester.mkdir("perf_tests")
    for test in (ROOT / "perf_tests").glob("test_*.py"):
        (folder / test.name).write_text(test.read_text())
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester
