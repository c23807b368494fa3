"""What a test sees: the ``llm`` fixture. Measures cells, and checks them against the profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.model.grid import Cell, parse_tokens
from pytest_llmperf.model.metrics import METRICS

if TYPE_CHECKING:
    from pytest_llmperf.model.result import CellRecord, Measurement, Notice
    from pytest_llmperf.run.session import Run
    from pytest_llmperf.verdict import MatrixVerdict


class Llm:
    """The server under test, for one test.

    ``result = await llm.decode("8K", 16)`` measures, ``await llm.check(result)`` judges it against
    the profile of ``--hardware`` and fails the test if it is worse.
    """

    def __init__(self, run: Run, item: pytest.Item) -> None:
        self._run = run
        self._item = item

    async def prefill(self, context: int | str) -> Measurement:
        """Measure cold prefill at a context length in tokens (``8192`` or ``"8K"``).

        Never raises for what a server does: an invalid measurement says so in ``status``.
        """
        return await self._run.measure(Cell("prefill", _tokens(context)))

    async def decode(self, context: int | str, concurrency: int) -> Measurement:
        """Measure sustained decode at a context length, with this many simultaneous requests."""
        return await self._run.measure(Cell("decode", _tokens(context), concurrency))

    async def check(self, measurement: Measurement) -> CellRecord:
        """Judge a measurement; on a breach measure again, at another start of the server where the
        run can start it, and judge all attempts.

        Fails the test when the cell is worse or invalid, skips it when it is over capacity.
        """
        record = await self._run.check(measurement, self._item.nodeid)
        _publish(self._item, record, self._run.findings)
        if self._run.stop_reason:
            self._item.session.shouldfail = self._run.stop_reason
        if record.failed:
            pytest.fail(record.message, pytrace=False)
        if record.outcome.value == "OVERCAP":
            pytest.skip(f"{record.cell}: {record.message}")
        return record

    @property
    def matrix(self) -> Matrix:
        """All cells of this run together."""
        return Matrix(self._run)


class Matrix:
    """The cells of a run as one matrix: a change too small for any cell may be certain over all."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def check(self) -> MatrixVerdict:
        """Judge the cells together against the runs of the profile.

        Fails the test when they got worse, naming metric and direction, or when the server itself
        is not what it was; skips it when there is nothing to judge by.
        """
        verdict = self._run.judge_matrix()
        found = [f"{finding.code}: {finding.text}" for finding in self._run.findings]
        found += [verdict.message] if verdict.worse else []
        if found:
            pytest.fail("\n".join(found), pytrace=False)
        if verdict.why:
            pytest.skip(verdict.why)
        return verdict


def _tokens(context: int | str) -> int:
    return parse_tokens(context) if isinstance(context, str) else context


def _publish(item: pytest.Item, record: CellRecord, findings: Sequence[Notice]) -> None:
    """Put outcome, values and changes where JUnit and other report plugins find them, once under
    reruns; and what fails the run, though it is no cell's."""
    from pytest_llmperf.report.cells import list_watched

    properties: dict[str, object] = {"llmperf_outcome": record.outcome.value}
    if findings:
        properties["llmperf_findings"] = "; ".join(f"{one.code}: {one.text}" for one in findings)
    if record.measurement is not None:
        for name in METRICS:
            if (value := record.measurement.value(name)) is not None:
                properties[f"llmperf_{name}"] = float(f"{value:.6g}")
    for comparison in record.comparisons:
        if comparison.delta is not None:
            properties[f"llmperf_{comparison.metric}_change"] = round(comparison.delta, 4)
    if record.limits:
        for check in record.limits:
            properties[f"llmperf_{check.metric}_limit"] = check.limit
        broken = [str(check) for check in record.limits if check.verdict == "broken"]
        properties["llmperf_limits_broken"] = "; ".join(broken)
    if warned := list_watched(record):
        properties["llmperf_watched"] = "; ".join(warned)
    others = [p for p in item.user_properties if not p[0].startswith("llmperf_")]
    item.user_properties[:] = [*others, *properties.items()]
