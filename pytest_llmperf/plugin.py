"""Hooks and fixtures, thin.

A project without a test of ours pays for the options only, and nothing heavy is imported until a
cell is about to run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmperf.config.options import add_options, claim_short_name
from pytest_llmperf.model.errors import LlmPerfError

if TYPE_CHECKING:
    from pytest_llmperf.run.fixture import Llm, Matrix
    from pytest_llmperf.run.selection import Selection
    from pytest_llmperf.run.series import Series
    from pytest_llmperf.run.session import Run
    from pytest_llmperf.run.workers import Gathered

SELECTION: pytest.StashKey[Selection] = pytest.StashKey()
SERIES: pytest.StashKey[Series] = pytest.StashKey()
GATHERED: pytest.StashKey[Gathered] = pytest.StashKey()
OUR_FIXTURES = {"llm", "prefill_cell", "decode_cell"}
NO_MARK = "add @pytest.mark.asyncio to the test; pytest-asyncio is installed"


def selection_of(config: pytest.Config) -> Selection:
    """The selection of this session, made when the first test of ours is met."""
    if SELECTION not in config.stash:
        from pytest_llmperf.run.selection import Selection

        config.stash[SELECTION] = Selection(config)
    return config.stash[SELECTION]


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not OUR_FIXTURES.isdisjoint(metafunc.fixturenames):
        selection_of(metafunc.config).parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # trylast: measuring order must survive plugins that shuffle
    selection = config.stash.get(SELECTION, None)
    if selection is None:
        return
    if selection.error is not None:
        raise pytest.UsageError(f"llmperf: {selection.error}")
    selection.sort(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # after --lf, --ff and --sw have had their way
    if SELECTION in session.config.stash:
        session.config.stash[SELECTION].settle(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    config = session.config
    selection = config.stash.get(SELECTION, None)
    if selection is None or config.option.collectonly:
        return
    items = selection.ours(session.items)
    if not items:
        return
    from pytest_llmperf.run.selection import run_of
    from pytest_llmperf.run.series import Series
    from pytest_llmperf.run.signals import end_on_sigterm

    series = config.stash[SERIES] = Series(selection, items)
    config.pluginmanager.register(series)
    config.add_cleanup(end_on_sigterm())
    if hasattr(config, "workerinput"):
        return  # a usage error would only kill the worker: its first cell tells
    try:
        series.start(min(map(run_of, items)))
    except LlmPerfError as error:
        raise pytest.UsageError(f"llmperf: {error}") from None


@pytest.fixture
def _llm_run(request: pytest.FixtureRequest) -> int:
    """The number of the run, where --llm-runs asks for several."""
    return getattr(request, "param", 1)


@pytest.fixture
def llm(request: pytest.FixtureRequest, _llm_run: int) -> Llm:
    """Measures the server of --llm-url and checks results against the profile of --hardware."""
    from pytest_llmperf.run.fixture import Llm

    return Llm(request.config.stash[SERIES].run_for(request.node), request.node)


@pytest.fixture
def llm_matrix(llm: Llm) -> Matrix:
    """Judges all cells together; a test that takes it runs last, and only with the whole matrix."""
    return llm.matrix


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    outcome = _outcome_of(report)
    if outcome == "OVERCAP" and report.skipped and not _stands_for_others(report, config):
        # stays in the "skipped" category, so that -rs and report plugins count it
        return "skipped", "O", ("OVERCAP", {"yellow": True})
    if report.when == "call" and report.passed and outcome not in (None, "PASS"):
        return "passed", ".", (f"PASSED {outcome}", {"green": True})
    return None


def _outcome_of(report: object) -> object:
    """What a cell of ours came to; None for any other test."""
    return dict(getattr(report, "user_properties", ())).get("llmperf_outcome")


def _stands_for_others(report: object, config: pytest.Config) -> bool:
    """Whether pytest's summary of skips, which has the word of the first one on every line, is
    about to take this report's although there are skips of other kinds."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not terminal.foldskipped:
        return False
    skipped = terminal.stats.get("skipped", [])
    # while the test runs its report is not among them
    return skipped[:1] == [report] and any(_outcome_of(other) != "OVERCAP" for other in skipped)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # --showlocals, captured logs: nobody knows what a traceback will hold
    report = yield
    series = item.config.stash.get(SERIES, None)
    if series is not None and report.failed:
        series.redact(report)
        if "async def functions are not natively supported" in str(report.longrepr):
            report.sections.append(("llmperf", NO_MARK))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    series = session.config.stash.get(SERIES, None)
    if series is not None:
        from pytest_llmperf.run.signals import undisturbed
        from pytest_llmperf.run.workers import OUTPUT

        status = int(session.exitstatus)
        interrupted = "interrupted" if status == pytest.ExitCode.INTERRUPTED else ""
        with undisturbed():
            session.exitstatus = series.finish(status, interrupted)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[OUTPUT] = series.dumps()
    elif (gathered := session.config.stash.get(GATHERED, None)) is not None:
        from pytest_llmperf.config.resolve import read_settings

        reports = read_settings(selection_of(session.config).values()).reports
        session.exitstatus = gathered.finish(int(session.exitstatus), reports)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from pytest_llmperf.run.workers import make_scheduler

    return make_scheduler(config, log, selection_of(config).values().get("url"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # a worker of pytest-xdist has ended, or died without any output
    output = getattr(node, "workeroutput", None)
    if output:
        from pytest_llmperf.run.workers import Gathered

        node.config.stash.setdefault(GATHERED, Gathered()).add(output)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    series, gathered = config.stash.get(SERIES, None), config.stash.get(GATHERED, None)
    runs: Sequence[Run | Gathered]
    runs = series.runs if series else [gathered] if gathered and gathered.final else []
    if runs:
        from pytest_llmperf.run.summary import write_github, write_summary

        for number, run in enumerate(runs, start=1):
            write_summary(run, terminalreporter, number, len(runs))
            write_github(run, terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    series = config.stash.get(SERIES, None)
    if series is not None:
        series.close()
