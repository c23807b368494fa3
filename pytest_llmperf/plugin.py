"""Hooks and fixtures, thin. Nothing heavy is imported until a cell of ours is about to run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.errors import LlmPerfError
from pytest_llmperf.options import add_options, claim_short_name
from pytest_llmperf.selection import Selection

if TYPE_CHECKING:
    from pytest_llmperf.fixture import Llm
    from pytest_llmperf.session import Run

SELECTION = pytest.StashKey[Selection]()
RUN: pytest.StashKey[Run] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    # after the conftests have been loaded: one of them may own the short name
    outcome = yield
    claim_short_name(parser, args)
    return outcome


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "llm(contexts=..., concurrency=...): a test's own matrix for prefill_cell or decode_cell",
    )
    config.stash[SELECTION] = Selection(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.config.stash[SELECTION].parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # trylast: measuring order must survive plugins that shuffle
    selection = config.stash[SELECTION]
    if selection.error is not None:
        raise pytest.UsageError(f"llmperf: {selection.error}")
    selection.sort(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    config = session.config
    selection = config.stash[SELECTION]
    items = selection.ours(session.items)
    if not items or config.option.collectonly:
        return
    from pytest_llmperf.startup import start_run

    try:
        config.stash[RUN] = start_run(selection, items)
    except LlmPerfError as error:
        raise pytest.UsageError(f"llmperf: {error}") from None


@pytest.fixture
def llm(request: pytest.FixtureRequest) -> Llm:
    """Measures the server of --llm-url and checks results against the profile of --hardware."""
    from pytest_llmperf.fixture import Llm

    return Llm(request.config.stash[RUN], request.node)


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    outcome = dict(getattr(report, "user_properties", ())).get("llmperf_outcome")
    if outcome == "OVERCAP" and report.skipped:
        # stays in the "skipped" category, so that -rs and report plugins count it
        return "skipped", "O", ("OVERCAP", {"yellow": True})
    if report.when == "call" and report.passed and outcome not in (None, "PASS"):
        return "passed", ".", (f"PASSED {outcome}", {"green": True})
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    run = session.config.stash.get(RUN, None)
    if run is not None:
        status = int(session.exitstatus)
        interrupted = "interrupted" if status == pytest.ExitCode.INTERRUPTED else ""
        session.exitstatus = run.finish(status, interrupted)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    run = config.stash.get(RUN, None)
    if run is not None:
        from pytest_llmperf.summary import write_summary

        write_summary(run, terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    if run is not None:
        run.close()
