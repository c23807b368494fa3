"""The runs of a session: one, or with ``--llm-runs`` several, each with a server start."""

from __future__ import annotations

import pytest

from pytest_llmperf.config.resolve import read_settings
from pytest_llmperf.measure.crew import Crew
from pytest_llmperf.model.errors import LlmPerfError
from pytest_llmperf.model.redact import redact
from pytest_llmperf.report.json import dumps
from pytest_llmperf.run.selection import Selection, is_matrix, run_of
from pytest_llmperf.run.session import Run
from pytest_llmperf.run.startup import start_run


class Series:
    """Goes from run to run as the items do."""

    def __init__(self, selection: Selection, items: list[pytest.Item]) -> None:
        self.runs: list[Run] = []
        """Those that were started, the last one still measuring."""
        self._selection = selection
        self._items = items
        self._by_id = {item.nodeid: item for item in items}
        self._crew: Crew | None = None
        """Who generates the load, in all runs."""
        self._number = 0
        self._status = 0

    def start(self, number: int) -> Run:
        """Start a run, after ending the one before.

        Raises:
            LlmPerfError: it cannot be measured, and what to do.
        """
        if self.runs:
            self._status = self.runs[-1].finish(0, "") or self._status
            self.runs[-1].close()
        first = self.runs[0] if self.runs else None
        if self._crew is None:
            settings = read_settings(self._selection.values())
            self._crew = Crew(settings.workers, settings.load)
        started = start_run(self._selection, self._items, self._crew, number, first)
        self.runs.append(started)
        self._number = number
        return self.runs[-1]

    def run_for(self, item: pytest.Item) -> Run:
        """The run an item belongs to; fails the item, and stops the session, if it cannot start."""
        number = run_of(item)
        if number == self._number:
            return self.runs[-1]
        try:
            return self.start(number)
        except LlmPerfError as error:
            item.session.shouldfail = reason = f"llmperf: {error}"
        pytest.fail(reason, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests failed though no cell of theirs did, nor the matrix."""
        item = self._by_id.get(report.nodeid)
        if item is None or not self.runs:
            return
        run = self.runs[-1]
        if report.when == "setup":  # for the first time, or by a plugin that runs it again
            run.failed_tests.pop(report.nodeid, None)
        of_run = is_matrix(item) and (run.matrix or run.findings)
        judged = of_run or run.has_failed(report.nodeid)
        if report.failed and not judged:
            run.failed_tests[report.nodeid] = None

    def finish(self, status: int, interrupted: str) -> int:
        """End the last run; return the session's exit status."""
        if not self.runs:
            return status
        last = self.runs[-1]
        if last.final is None:  # else the next one could not start
            status = last.finish(status, interrupted)
        if last.settings.runs > 1:
            self._report_all()
        return status or self._status or int(bool(last.outputs.unwritable))

    def _report_all(self) -> None:
        """Write reports of all runs under the names that one run's have, so that none of an older
        session is taken for this one's."""
        finals = [run.final for run in self.runs if run.final and run.final.cells]
        reports = read_settings(self._selection.values()).reports
        for name, path in reports.items() if finals else ():
            self.runs[-1].outputs.write(name, path, finals)

    def dumps(self) -> str:
        """What the last run measured, as JSON; empty if that is nothing."""
        final = self.runs[-1].final if self.runs else None
        return dumps(final) if final is not None and final.cells else ""

    def redact(self, report: pytest.TestReport) -> None:
        """Take the runs' keys out of what a test's failure shows."""
        secrets = {secret for run in self.runs for secret in run.secrets}
        report.sections = [(name, redact(text, secrets)) for name, text in report.sections]
        shown = str(report.longrepr or "")
        if any(secret in shown for secret in secrets):
            report.longrepr = redact(shown, secrets)

    def close(self) -> None:
        """Stop what was started. Idempotent."""
        for run in self.runs:
            run.close()
        if self._crew is not None:
            self._crew.close()
