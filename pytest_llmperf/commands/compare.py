"""``llmperf compare``: results against earlier results or a baseline, without a server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline import update
from pytest_llmperf.baseline.changes import find_lost_kv, list_changes
from pytest_llmperf.baseline.file import Loaded, loads
from pytest_llmperf.baseline.file import read as read_baseline
from pytest_llmperf.baseline.match import compare as match
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, ChangedFact, Measurement, Notice, RunResult
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.report.json import read as read_results
from pytest_llmperf.verdict import (
    Gate,
    Limits,
    MatrixVerdict,
    check_limits,
    fails,
    judge,
    judge_matrix,
    why_empty,
    words,
)

_BASELINE = (".yaml", ".yml")
"""Ends of the name of a profile's file; any other reference is results of a run."""


@dataclass(frozen=True)
class Compared:
    """A run with the verdicts of this comparison in place of its own."""

    result: RunResult
    matrix: MatrixVerdict
    empty: str
    """Why nothing could be compared; empty if something was."""

    @property
    def exit_code(self) -> int:
        """0: no regression. 1: a regression, a finding, or nothing comparable."""
        failed = any(record.failed for record in self.result.cells)
        return int(failed or bool(self.matrix.worse or self.result.findings or self.empty))


def compare(
    references: Sequence[Path],
    tested: Path,
    settings: Settings,
    *,
    confirmations: Sequence[Path] = (),
    allow_mismatch: bool = False,
) -> Compared:
    """Judge a results file.

    Args:
        references: one baseline file, or results of one run or several: each is one run of noise.
        tested: a results file.
        settings: tolerances, limits, and gates beyond the default ones.
        confirmations: results of further runs of what was tested: the attempts at a cell, in all
            of them, are judged together, as those at further starts of the server.
        allow_mismatch: compare although model, engine or settings differ.

    Raises:
        ConfigError: a file cannot be read, or the two sides are not comparable.
    """
    run = read_results(tested)
    reference = _read_reference(references)
    baseline = reference.baseline
    alike = [run, *map(read_results, confirmations)]
    _refuse_twice(alike, [tested, *confirmations])
    warnings = []
    for path, one in zip([tested, *confirmations], alike, strict=True):
        differing = _differences(reference, one)
        if differing and not allow_mismatch:
            raise ConfigError(
                f"{path} is not what {reference.path} was made with: {differing}; "
                "--allow-mismatch compares them all the same"
            )
        if differing:
            warnings.append(Notice(code="mismatch", text=differing))
    grid = {Cell.parse(name) for name in baseline.cells}
    stored = reference.path.suffix in _BASELINE
    called = reference.path.stem if stored else str(reference.path)
    limits = Limits.build(baseline, settings)
    gate = Gate.build(
        called, baseline.cells, grid, settings, baseline.tolerance, runs=baseline.runs,
        floors=baseline.floor, watched=limits.watched,
    )  # fmt: skip
    changed: list[ChangedFact] = []
    findings: list[Notice] = []
    if run.server is not None:
        seen = [record.measurement for record in run.cells if record.measurement]
        changed = list_changes(baseline, run.server, run.run_info, seen)
        findings = [] if warnings else find_lost_kv(baseline, run.server)
    pooled = _pool(alike)
    first = [_judge(record, gate, limits, changed) for record in pooled]
    records = [_judge(record, gate, limits, changed, first) for record in pooled]
    if not stored:  # no command measures against a results file
        records = [record.model_copy(update={"nodeid": ""}) for record in records]
    matrix = judge_matrix(records, gate)
    missing = [name for name in baseline.ordered_cells() if name not in {r.cell for r in records}]
    idle = limits.find_idle({*grid, *(Cell.parse(record.cell) for record in records)})
    result = run.model_copy(
        update={
            "profile": called if stored else None,
            "url": run.url if stored else str(tested),
            "against": "" if stored else called,
            "cells": records,
            "stale": [],
            "changed_facts": changed,
            "findings": findings,
            "matrix": matrix.message,
            "warnings": [*warnings, *idle, *_not_measured(missing)],
        }
    )
    return Compared(result, matrix, why_empty(records))


def _read_reference(paths: Sequence[Path]) -> Loaded:
    """A baseline file, or the baseline that results would make."""
    if len(paths) == 1 and paths[0].suffix in _BASELINE:
        return read_baseline(paths[0])
    made: Loaded | None = None
    for path in paths:
        run = read_results(path)
        # what a run was called worse than before does not matter: here it is the reference
        run = run.model_copy(update={"profile": path.stem, "interrupted": ""})
        if made is not None and (differing := _differences(made, run)):
            raise ConfigError(
                f"{path} is not what {made.path} was made with: {differing}; runs of one baseline "
                "must be alike"
            )
        text = update.plan(made, run, mode="add", reason="reference").after
        if not text:
            raise ConfigError(f"{path}: no cell was measured, there is nothing to compare with")
        made = Loaded(path, text, loads(text, str(path)))
    assert made is not None
    return made


def _differences(reference: Loaded, run: RunResult) -> str:
    """What makes a run another thing than the reference, for people; empty if nothing does."""
    if run.server is None:
        return ""
    baseline, facts = reference.baseline, {**run.run_info, **run.hardware}
    matching = match(baseline, run.server, run.settings, facts)
    differing = [str(fact) for fact in matching.mismatches]
    if run.server.simulated != baseline.simulated:
        differing.append("one is simulated, the other is not")
    return "; ".join(differing)


def _refuse_twice(runs: Sequence[RunResult], paths: Sequence[Path]) -> None:
    """A run cannot confirm itself."""
    seen: dict[tuple[str, str], Path] = {}
    for run, path in zip(runs, paths, strict=True):
        first = seen.setdefault((run.date, run.url), path)
        if first is not path:
            raise ConfigError(f"{path} is the same run as {first}; a run cannot confirm itself")


def _pool(runs: Sequence[RunResult]) -> list[CellRecord]:
    """The cells of several runs, each once, with its attempts in all of them; the starts of the
    server are counted on from run to run."""
    pooled: dict[str, CellRecord] = {}
    before = 0
    for run in runs:
        latest = before
        for record in run.cells:
            if record.measurement is None:
                continue
            attempts = [
                one.model_copy(update={"start": before + one.start}) for one in _attempts(record)
            ]
            latest = max(latest, *(one.start for one in attempts))
            known = pooled.setdefault(record.cell, record.model_copy(update={"attempts": []}))
            pooled[record.cell] = known.model_copy(
                update={"attempts": [*known.attempts, *attempts]}
            )
        before = latest
    return list(pooled.values())


def _attempts(record: CellRecord) -> list[Measurement]:
    """Those that count: a plugin may have run the cell again after one of another kind."""
    assert record.measurement is not None
    status = record.measurement.status
    return [m for m in record.attempts if m.status is status] or [record.measurement]


def _judge(
    record: CellRecord,
    gate: Gate,
    limits: Limits,
    changed: Sequence[ChangedFact],
    others: Sequence[CellRecord] = (),
) -> CellRecord:
    judged = check_limits(judge(Cell.parse(record.cell), record.attempts, gate, others), limits)
    update: dict[str, object] = {"nodeid": record.nodeid, "failed": fails(judged, gate)}
    if judged.outcome.failed:
        update["message"] = words.with_changes(judged.message, changed)
    return judged.model_copy(update=update)


def _not_measured(cells: Sequence[str]) -> list[Notice]:
    if not cells:
        return []
    return [Notice(code="not-measured", text=f"only in the reference: {', '.join(cells)}")]
