"""The one mutable object of a run: what was asked, what answers, what was measured and judged."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_llmperf import __version__
from pytest_llmperf.baseline import update
from pytest_llmperf.baseline.changes import find_lost_kv, list_changes
from pytest_llmperf.baseline.file import Loaded
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.client.deadline import within
from pytest_llmperf.client.health import client_bound
from pytest_llmperf.client.http import list_secrets
from pytest_llmperf.client.isolation import run_apart, run_blocking
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.errors import LlmPerfError, ServerDied, ServerUnusable
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.redact import UNMISTAKABLE, redact, redact_all
from pytest_llmperf.model.result import (
    CellRecord,
    ChangedFact,
    Measurement,
    Notice,
    Outcome,
    RunResult,
    RunSettings,
    ServerInfo,
    Status,
)
from pytest_llmperf.model.settings import Connection, Settings
from pytest_llmperf.progress.show import Show
from pytest_llmperf.report.numbers import count
from pytest_llmperf.run.acceptance import accept
from pytest_llmperf.run.outputs import Outputs
from pytest_llmperf.run.restart import Restarts
from pytest_llmperf.server.serve import ServerProcess
from pytest_llmperf.server.telemetry import Telemetry
from pytest_llmperf.verdict import (
    Gate,
    Limits,
    MatrixVerdict,
    check_limits,
    choose_sample,
    confirm,
    fails,
    judge,
    judge_matrix,
    needs_confirmation,
    why_empty,
    words,
)
from pytest_llmperf.verdict.judge import MEASUREMENTS

RETRIES = 2
"""Further attempts when this host, not the server, was what a cell measured."""

HEALTH_S = 5.0
"""A server that answers nothing for this long after a failed cell is taken to be gone."""


class Run:
    """A run that is ready to measure; made by ``startup.start_run``."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        connection: Connection,
        server: ServerInfo,
        run_settings: RunSettings,
        measurer: Measurer,
        gate: Gate | None,
        profile: Loaded | None,
        say: Callable[[str], None],
        show: Show,
    ) -> None:
        self.settings = settings
        self.url = redact(url)
        """As the user wrote it, so that a report can name the command that measures again."""
        self.connection = connection
        self.server = server
        self.run_settings = run_settings
        self.secrets = list_secrets(connection)
        """What must never be shown."""
        self.profile = profile
        self.records: dict[str, CellRecord] = {}
        self.warnings: list[Notice] = []
        self.stale: list[str] = []
        self.number = 1
        """Of the run within the session."""
        self.judged_by: Baseline | None = None
        """What the cells are compared with."""
        self.before = ""
        """The profile's text before the session's first run; empty where there was none."""
        self.options: list[str] = []
        """What the command line gave, for a command that measures again."""
        self.process: ServerProcess | None = None
        """The server, where this run started it."""
        self.limits = Limits()
        """Absolute ones, whatever the cells are compared with."""
        self.restarts: Restarts
        """The further starts of it that this run may make."""
        self.start = 1
        """Number of the server start that is measured now."""
        self.against = ""
        """The other server that this one is compared with, if any."""
        self.failed_tests: dict[str, None] = {}
        """Tests that failed by themselves, in order."""
        self.matrix = ""
        """What got worse over all cells together."""
        self.stop_reason = ""
        """Why measuring on makes no sense; the rest of the session is not run."""
        self.outputs = Outputs(say)
        self.final: RunResult | None = None
        self.empty = ""
        """Why a run without a failure is not green all the same."""
        self.update_text = ""
        """What the update did, for the terminal."""
        self.not_updated = ""
        """Why it did nothing."""
        self._measurer = measurer
        self._gate = gate
        self.closers = contextlib.ExitStack()
        """What ends with the run."""
        self._say = say
        self.show = show
        self.telemetry = Telemetry()
        self._date = now()

    # Measuring

    async def measure(self, cell: Cell) -> Measurement:
        """Measure one cell once; never raises for what a server does."""
        measurement = await self._measure_once(cell)
        for _ in range(RETRIES):
            if not client_bound(measurement.client):
                break
            first, measurement = measurement, await self._measure_once(cell)
            text = f"an attempt was thrown away: {first.reason}"
            if measurement.client.workers > first.client.workers:
                processes = count(measurement.client.workers, "load process", "load processes")
                text += f"; measured again with {processes}"
            note = Notice(code="measured-again", text=text)
            measurement = measurement.model_copy(
                update={"warnings": [*first.warnings, note, *measurement.warnings]}
            )
        await self._look_after_server(measurement)
        return measurement

    async def _measure_once(self, cell: Cell) -> Measurement:
        measure = self._measurer.prefill if cell.phase == "prefill" else self._measurer.decode
        async with self.show.cell(cell) as show:
            with self.telemetry.watching(self.show.board.in_window) as gpus:
                measurement = await run_apart(lambda: measure(cell))
            show(measurement)
        return gpus.added_to(measurement).model_copy(update={"start": self.start})

    async def check(self, measurement: Measurement, nodeid: str) -> CellRecord:
        """Judge a measurement, confirm a breach by measuring again, and keep the record."""
        record = await self._judge(measurement)
        record = record.model_copy(update={"nodeid": nodeid, "failed": fails(record, self._gate)})
        if record.outcome.failed:
            message = words.with_changes(record.message, self._list_changes([record]))
            record = record.model_copy(update={"message": message})
        if self.settings.update:
            record = self._accept(record)
        self.records[record.cell] = _after(self.records.get(record.cell), record)
        self._write_results()
        return record

    async def _judge(self, measurement: Measurement) -> CellRecord:
        cell = measurement.cell
        attempts = [measurement]
        others = list(self.records.values())
        record = check_limits(judge(cell, attempts, self._gate, others), self.limits)
        differs = first_differs = needs_confirmation(record) or self._stores_gain(record)
        # of two attempts that disagree neither is the middle: a third one is taken all the same
        while first_differs and len(attempts) < MEASUREMENTS and not self.stop_reason:
            if differs and self.restarts.left > 0 and not await self._start_again(cell.id):
                break
            attempts.append(await self.measure(cell))
            record = check_limits(judge(cell, attempts, self._gate, others), self.limits)
            differs = needs_confirmation(record) or self._stores_gain(record)
        starts = len({attempt.start for attempt in attempts})
        if record.outcome is Outcome.REGRESSED:
            message = f"{record.message}\n{words.at_starts(starts, ours=self.restarts.ours)}"
            record = record.model_copy(update={"message": message})
        elif starts > 1 and record.outcome is Outcome.LIMIT:
            message = f"{record.message}\n{words.at_starts(starts, ours=True)}"
            record = record.model_copy(update={"message": message})
        elif starts > 1 and record.outcome in (Outcome.PASS, Outcome.MEASURED):
            what = "tolerance" if self._gate is not None else "limit"
            text = f"{cell.id} was beyond its {what} at one start of the server, not over all"
            self.warnings.append(Notice(code="starts-differ", text=text))
        return record

    def _stores_gain(self, record: CellRecord) -> bool:
        """Whether an update would store it as better, for which it is to be as sure as for worse.
        A run that is added to others is no level of its own."""
        settings = self.settings
        gained = record.outcome is Outcome.IMPROVED and settings.update_mode != "add"
        return settings.update and gained and self._decide(record).action == "accepted"

    async def _start_again(self, what: str) -> bool:
        """Go on with another start of the server; False where it does not come up."""
        self._say(f"llmperf: {what} is measured again: is it so at another start of the server?")
        try:
            restarted = await self.restarts.start_again()
        except LlmPerfError as error:
            self.stop_reason = f"llmperf: the server did not start again after {what}: {error}"
            return False
        target = restarted.target
        self.connection, self.server = target.connection, target.connected.info
        self.process, self._measurer = target.process, restarted.measurer
        self.start = self.show.board.start = restarted.number
        if target.process is not None:
            known = self.settings.run_info
            log = f"{known['server_log']}, {target.process.log}"
            self.settings = replace(self.settings, run_info={**known, "server_log": log})
        return True

    def judge_matrix(self) -> MatrixVerdict:
        """Judge the cells measured so far together, and keep what got worse for the report."""
        if self._gate is None:
            return MatrixVerdict((), "nothing to compare with")
        if self.settings.update:
            return MatrixVerdict((), "the baseline is being updated")
        verdict = judge_matrix(list(self.records.values()), self._gate)
        if verdict.worse and self.restarts.ours and self.settings.restarts:
            gate, found = self._gate, verdict
            verdict = run_blocking(lambda: self._confirm(found, gate))
        elif verdict.worse:
            verdict = replace(verdict, note=words.at_starts(1, ours=self.restarts.ours))
        self.matrix = verdict.message
        return verdict

    async def _confirm(self, verdict: MatrixVerdict, gate: Gate) -> MatrixVerdict:
        """Measure some cells at further starts: as many as a cell is, before it is called worse."""
        starts = self.start
        while verdict.worse and self.start < starts + MEASUREMENTS - 1:
            sample = choose_sample(verdict)
            if not await self._start_again("the matrix"):
                break
            again = [judge(cell, [await self.measure(cell)], gate) for cell in sample]
            if self.stop_reason:
                break
            verdict = confirm(verdict, again, gate)
        return verdict

    def _accept(self, record: CellRecord) -> CellRecord:
        """With --update-baselines a cell whose new values will be stored passes as UPDATED."""
        decision = self._decide(record)
        if decision.action == "accepted":
            broken = any(check.verdict == "broken" for check in record.limits)
            outcome = Outcome.LIMIT if broken else Outcome.UPDATED
            return record.model_copy(update={"outcome": outcome, "failed": broken})
        if record.failed:
            message = f"{record.message}\nnot accepted into the baseline: {decision.why}"
            return record.model_copy(update={"message": message})
        return record

    def _decide(self, record: CellRecord) -> update.Decision:
        settings = self.settings
        return update.decide(self.profile, record, settings.update_mode, settings.update_reason)

    async def _look_after_server(self, measurement: Measurement) -> None:
        """If the server is gone after a failed cell, say so once instead of failing every later
        one; and state whether it was started anew."""
        cell = measurement.cell

        async def ask() -> str:
            return await within(HEALTH_S, self._measurer.find_change())

        try:
            change = await run_apart(ask)
        except (ServerDied, ServerUnusable, asyncio.TimeoutError) as error:
            if measurement.status is Status.INVALID:
                words = str(error) or f"it has not answered for {HEALTH_S:g} s"
                self.stop_reason = f"llmperf: the server is gone since {cell.id}: {words}"
                if self.process is not None and (ended := self.process.explain()):
                    self.stop_reason += f"\n{ended}"
            return
        if change and not any(notice.code == "restarted" for notice in self.warnings):
            text = f"the server was started anew during {cell.id} or before: {change}"
            self.warnings.append(Notice(code="restarted", text=text))
            self._say(f"llmperf: {text}")

    # Results

    @property
    def findings(self) -> list[Notice]:
        """What fails the run though it is no cell's, unless the user gave a reason to accept it."""
        if self.judged_by is None or (self.settings.update and self.settings.update_reason):
            return []
        return find_lost_kv(self.judged_by, self.server)

    def _list_changes(self, more: Sequence[CellRecord] = ()) -> list[ChangedFact]:
        if self.judged_by is None:
            return []
        measured = [r.measurement for r in (*self.records.values(), *more) if r.measurement]
        return list_changes(self.judged_by, self.server, self.settings.run_info, measured)

    def has_failed(self, nodeid: str) -> bool:
        """Whether a cell that this test checked last has failed."""
        return any(r.failed and r.nodeid == nodeid for r in self.records.values())

    def result(self, *, finished: bool, interrupted: str = "") -> RunResult:
        """The run so far, as reports and ``results.json`` hold it."""
        hardware = self.profile.baseline.hardware if self.profile else None
        run = RunResult(
            llmperf_version=__version__,
            date=self._date,
            finished=finished,
            interrupted=interrupted or self.stop_reason,
            simulated=self.server.simulated,
            url=self.url,
            serve=redact(self.settings.serve or ""),
            against=self.against,
            options=self.options,
            profile=self.settings.hardware,
            hardware=hardware.model_dump(exclude_none=True) if hardware else {},
            run_info=dict(self.settings.run_info),
            server=self.server,
            settings=self.run_settings,
            cells=list(self.records.values()),
            stale=[cell for cell in self.stale if cell not in self.records],
            warnings=self.warnings,
            changed_facts=self._list_changes(),
            findings=self.findings,
            matrix=self.matrix,
            failed_tests=list(self.failed_tests),
            not_updated=self.not_updated,
        )
        known = [secret for secret in self.secrets if len(secret) >= UNMISTAKABLE]
        return RunResult.model_validate(redact_all(run.model_dump(), known)) if known else run

    def finish(self, exitstatus: int, interrupted: str) -> int:
        """Update the baseline if asked to, write the reports; return pytest's exit status."""
        interrupted = interrupted or self.stop_reason
        self.empty = why_empty(self.records.values())
        if self.settings.update:
            result = self.result(finished=not interrupted, interrupted=interrupted)
            if self._gate is not None:  # what no cell shows alone is not to be stored unseen
                matrix = judge_matrix(list(self.records.values()), self._gate).message
                result = result.model_copy(update={"matrix": matrix})
            before = self.before if self.number == self.settings.runs else None
            done = accept(self.settings, self.profile, result, self.empty, before)
            self.update_text, self.not_updated = done.text, done.why_not
            exitstatus = exitstatus or int(done.refused)
            for cell in done.cells:  # some for what others did, after their own tests
                record = self.records[cell]
                if record.outcome is not Outcome.LIMIT:
                    self.records[cell] = record.model_copy(update={"outcome": Outcome.UPDATED})
        self.final = result = self.result(finished=not interrupted, interrupted=interrupted)
        if self.records:
            for name, path in self.settings.reports.items():
                self.outputs.write(name, path, [result])
        return exitstatus or int(bool(self.empty or self.outputs.unwritable or self.findings))

    def _write_results(self) -> None:
        """The JSON after every cell, so that a killed run keeps what it measured."""
        if path := self.settings.reports.get("json"):
            self.outputs.write("json", path, [self.result(finished=False)])

    def close(self) -> None:
        """Stop what the run started, and give the server free. Idempotent."""
        self.closers.close()


def _after(earlier: CellRecord | None, record: CellRecord) -> CellRecord:
    """A cell that a plugin ran again: the first verdict stays visible beside the last one."""
    if earlier is None or earlier.nodeid != record.nodeid:
        return record
    again = f"run again after {earlier.outcome.value}"
    return record.model_copy(
        update={
            "attempts": [*earlier.attempts, *record.attempts],
            "notes": [*earlier.notes, *record.notes, again],
        }
    )


def now() -> str:
    """Wall time, ISO 8601 with zone; metadata only."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
