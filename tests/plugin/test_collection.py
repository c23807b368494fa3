"""Collecting the matrix: ids, order, selection; no server, and nothing heavy imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRID = ["--llm-contexts=8K,1000", "--llm-concurrency=16,1"]


@pytest.fixture
def perf(pytester: pytest.Pytester) -> pytest.Pytester:
    """A user's project with the shipped perf tests."""
    folder = pytester.mkdir("perf_tests")
    for test in (ROOT / "perf_tests").glob("test_*.py"):
        (folder / test.name).write_text(test.read_text())
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


def collected(result: pytest.RunResult) -> list[str]:
    return [line.split("::")[1] for line in result.outlines if "::" in line]


def test_cells_are_collected_without_a_server_context_by_context(perf: pytest.Pytester) -> None:
    """Prefill comes first in each context, then rising concurrency, whatever order was given."""
    result = perf.runpytest("perf_tests", "--collect-only", "-q", *GRID)
    assert result.ret == 0
    assert collected(result) == [
        "test_prefill[1000]",
        "test_decode[1000-c1]",
        "test_decode[1000-c16]",
        "test_prefill[8K]",
        "test_decode[8K-c1]",
        "test_decode[8K-c16]",
    ]


@pytest.mark.parametrize(
    ("profile", "prefills", "decodes"), [("rtxpro6k_x4", 8, 56), ("h200nvl_x2", 7, 48)]
)
def test_a_profile_declares_its_own_grid(
    perf: pytest.Pytester, profile: str, prefills: int, decodes: int
) -> None:
    """--hardware brings the contexts and concurrencies of the published report."""
    ids = collected(perf.runpytest("perf_tests", "--collect-only", "-q", "--hardware", profile))
    assert sum(i.startswith("test_prefill[") for i in ids) == prefills
    assert sum(i.startswith("test_decode[") for i in ids) == decodes


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-k", "8K-c16"], ["test_decode[8K-c16]"]),
        (["-k", "prefill"], ["test_prefill[1000]", "test_prefill[8K]"]),
        (["-p", "randomly", "-p", "no:cacheprovider", "-k", "c16"], None),
    ],
)
def test_selection_works_as_anywhere_in_pytest(
    perf: pytest.Pytester, args: list[str], expected: list[str] | None
) -> None:
    """-k picks cells by their id; order survives a plugin that shuffles."""
    result = perf.runpytest("perf_tests", "--collect-only", "-q", *GRID, *args)
    assert collected(result) == (expected or ["test_decode[1000-c16]", "test_decode[8K-c16]"])


def test_a_node_id_names_one_cell(perf: pytest.Pytester) -> None:
    """perf_tests/test_decode.py::test_decode[8K-c16] is that cell alone."""
    node = "perf_tests/test_decode.py::test_decode[8K-c16]"
    result = perf.runpytest(node, "--collect-only", "-q", *GRID)
    assert collected(result) == ["test_decode[8K-c16]"]


def test_a_marker_gives_a_test_its_own_matrix(perf: pytest.Pytester) -> None:
    """@pytest.mark.llm beats the profile, the command line beats the marker."""
    perf.makepyfile(
        """
        import pytest
        @pytest.mark.llm(contexts="2K", concurrency=[3, 5])
        def test_mine(llm, decode_cell): pass
        """
    )
    own = ["test_a_marker_gives_a_test_its_own_matrix.py", "--collect-only", "-q"]
    both = ["test_mine[2K-c3]", "test_mine[2K-c5]"]
    assert collected(perf.runpytest(*own, "--hardware=rtxpro6k_x4")) == both
    assert collected(perf.runpytest(*own, "--llm-concurrency=7")) == ["test_mine[2K-c7]"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--llm-contexts=8X"], "*--llm-contexts: '8X' is not a token count*"),
        (["--llm-contexts=8K,8192"], "*--llm-contexts: *8192 more than once*"),
        (["--llm-contexts=,"], "*--llm-contexts: the list is empty*"),
        (["--llm-concurrency=0"], "*--llm-concurrency: '0' is not a number of requests*"),
        (["--llm-concurrency=two"], "*--llm-concurrency: 'two' is not a number*"),
        (["--hardware=nonesuch"], "*nonesuch*h200nvl_x2, rtxpro6k_x4*"),
    ],
)
def test_a_grid_that_cannot_be_read_is_a_usage_error(
    perf: pytest.Pytester, args: list[str], message: str
) -> None:
    """Exit 4 and one message that says what to write, even when only collecting."""
    result = perf.runpytest("perf_tests", "--collect-only", *args)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: llmperf: {message}"])


def test_a_missing_url_shows_both_ways_to_give_one(perf: pytest.Pytester) -> None:
    """Exit 4 before any load; tests that do not measure are not punished."""
    result = perf.runpytest("perf_tests", *GRID)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--llm-url http://*", "*--llm-url sim*"])
    perf.makepyfile("def test_other(): pass")
    assert perf.runpytest("test_a_missing_url_shows_both_ways_to_give_one.py").ret == 0


def test_the_short_name_of_hardware_is_left_to_a_project_that_owns_it(
    perf: pytest.Pytester,
) -> None:
    """A conftest with its own --hardware neither crashes nor is overruled."""
    perf.makeconftest(
        """
        def pytest_addoption(parser): parser.addoption("--hardware")
        """
    )
    perf.makepyfile(
        """
        def test_own(pytestconfig):
            assert pytestconfig.getoption("--hardware") == "theirs"
            assert pytestconfig.getoption("--llm-hardware") is None
        """
    )
    own = "test_the_short_name_of_hardware_is_left_to_a_project_that_owns_it.py"
    assert perf.runpytest(own, "--hardware", "theirs").ret == 0


def test_the_plugin_can_be_switched_off(perf: pytest.Pytester) -> None:
    """-p no:llmperf takes options and fixtures away and nothing else."""
    perf.makepyfile("def test_other(): pass")
    assert perf.runpytest("-p", "no:llmperf", "test_the_plugin_can_be_switched_off.py").ret == 0


def test_nothing_heavy_is_imported_while_only_collecting(perf: pytest.Pytester) -> None:
    """The plugin costs an unrelated run, and a collection, no import of the client's libraries."""
    perf.makeconftest(
        """
        import sys
        def pytest_sessionfinish():
            heavy = {"httpx", "numpy", "pydantic", "httptools", "msgspec", "uvicorn"}
            heavy |= {"prometheus_client"}
            print("heavy:", sorted(heavy & set(sys.modules)))
        """
    )
    run = subprocess.run(
        # pytest-randomly imports numpy to seed it
        [sys.executable, "-m", "pytest", "-s", "-q", "--collect-only", "-p", "no:randomly"],
        cwd=perf.path,
        env={**os.environ, "PYTEST_ADDOPTS": "--hardware=rtxpro6k_x4"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "test_decode[8K-c16]" in run.stdout
    assert "heavy: []" in run.stdout
