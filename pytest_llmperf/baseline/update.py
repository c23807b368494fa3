"""Taking a run's numbers into a baseline: plan (pure), show the difference, write once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pytest_llmperf.baseline import facts, store
from pytest_llmperf.baseline.file import Loaded
from pytest_llmperf.baseline.match import compare
from pytest_llmperf.baseline.schema import (
    KEEP_RUNS,
    LEVEL_RUNS,
    STORED,
    Baseline,
    BaselineSettings,
    CellBaseline,
    Run,
)
from pytest_llmperf.baseline.splice import rewrite
from pytest_llmperf.model.choices import UpdateMode
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement, RunResult, Status
from pytest_llmperf.model.state import UNSURE, lost_state

Action = Literal["accepted", "kept", "refused", "pruned"]

Move = tuple[str, str]
"""A metric, and the verdict on it: worse or better."""


@dataclass(frozen=True)
class Decision:
    """What becomes of one cell, and why."""

    cell: str
    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """An update that has not been written. ``before`` is empty where there is no baseline yet."""

    before: str
    after: str
    decisions: tuple[Decision, ...]

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def accepted(self) -> frozenset[str]:
        """Ids of the cells whose new values the file will hold."""
        return frozenset(d.cell for d in self.decisions if d.action == "accepted")

    def diff(self, name: str) -> str:
        """The change as a unified diff of the file ``name``; empty when there is none."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{name}" if self.before else "/dev/null",
            f"b/{name}",
        )
        return "".join(lines)


def plan(
    old: Loaded | None,
    run: RunResult,
    *,
    mode: UpdateMode = "moved",
    reason: str | None = None,
    prune: bool = False,
) -> Plan:
    """Decide what of a run goes into its profile, without touching a file.

    Args:
        old: the baseline as it was read at the start of the run; None makes a new profile.
        mode: ``moved`` takes new cells and those beyond their noise, and with these what went the
            same way by more than half its tolerance; ``new`` takes new cells only, ``better``
            better ones, ``all`` every valid cell, ``add`` puts the run beside the
            earlier ones. All but ``add`` start a new level.
        reason: why slower values are right; without it they are refused.
        prune: delete the cells that the declared grid has no more.

    Raises:
        ConfigError: the run may not update this profile at all: interrupted, a simulated run and
            a real profile (or the reverse), another model or machine, other settings; or its cells
            together are worse, which ``add`` and ``all`` would take without a word.
    """
    refuse(old, run)
    if mode in ("add", "all") and run.matrix and not reason:
        raise ConfigError(f'baseline not updated: {run.matrix}\n--llm-update-reason "…" accepts it')
    run_id, run_facts = facts.name_run(old.baseline if old else None, run, reason)
    stored = dict(old.baseline.cells) if old else {}
    moved: frozenset[Move] = frozenset()
    for _ in range(2):  # first what moved by itself, then what leans the same way too
        decided = [
            (record, *_decide(stored.get(record.cell), record, run_id, mode, reason, moved))
            for record in run.cells
        ]
        moved = frozenset(
            (comparison.metric, comparison.verdict)
            for record, decision, _ in decided
            for comparison in record.comparisons
            if decision.action == "accepted" and comparison.verdict in ("worse", "better")
        )
    decisions = [decision for _, decision, _ in decided]
    cells = {**stored, **{record.cell: cell for record, _, cell in decided if cell is not None}}
    for cell_id in run.stale if prune else ():
        if cells.pop(cell_id, None):
            decisions.append(Decision(cell_id, "pruned", "the declared grid has it no more"))
    if old and not cells:
        raise ConfigError("--llm-prune would delete every cell of the profile; nothing written")
    before = old.text if old else ""
    if not any(d.action in ("accepted", "pruned") for d in decisions):
        return Plan(before, before, tuple(decisions))
    new = _merge(old.baseline if old else None, run, run_id, run_facts, cells)
    return Plan(before, rewrite(old, new), tuple(decisions))


def decide(
    old: Loaded | None, record: CellRecord, mode: UpdateMode, reason: str | None
) -> Decision:
    """What ``plan`` will decide for one cell, while its test still runs and nothing is known of
    what others did."""
    stored = old.baseline.cells.get(record.cell) if old else None
    return _decide(stored, record, "now", mode, reason, frozenset())[0]


def apply(plan: Plan, path: Path, old: Loaded | None) -> bool:
    """Write a plan to the user's file of the profile; False when there is nothing to write.

    Raises:
        ConfigError: see ``store.write``; the file is then as it was.
    """
    if not plan.changed:
        return False
    # a shipped profile is read from elsewhere, and becomes a file of the user's own
    expected = old.text if old and old.path.resolve() == path.resolve() else None
    store.write(path, plan.after, expected)
    return True


def refuse(old: Loaded | None, run: RunResult) -> None:
    """Whether a run may update this profile at all.

    Raises:
        ConfigError: it may not, and why.
    """
    if run.interrupted:
        raise ConfigError(f"baseline not updated: the run was interrupted ({run.interrupted})")
    if run.server is None or run.profile is None:
        raise ConfigError("baseline not updated: it needs a server and --hardware NAME")
    if old is None:
        return
    simulated = run.simulated or run.server.simulated
    if simulated != old.baseline.simulated:
        what = ("a simulated run", "real") if simulated else ("a real run", "simulated")
        raise ConfigError(
            f"baseline not updated: {what[0]} cannot go into the {what[1]} profile {run.profile}; "
            "take another name with --hardware"
            + (", or a copy marked 'simulated: true'" if simulated else "")
        )
    matching = compare(old.baseline, run.server, run.settings, run.run_info)
    if matching.mismatches:
        raise ConfigError(f"baseline not updated: {matching.explain(run.profile)}")


def _decide(
    old: CellBaseline | None,
    record: CellRecord,
    run_id: str,
    mode: UpdateMode,
    reason: str | None,
    moved: frozenset[Move],
) -> tuple[Decision, CellBaseline | None]:
    """What to do with one cell, and what to store if it is accepted; ``moved``: by other cells."""

    def no(action: Action, why: str) -> tuple[Decision, None]:
        return Decision(record.cell, action, why), None

    measured = record.measurement
    if measured is None:
        return no("kept", "not measured")
    if measured.status is Status.INVALID:
        return no("refused", f"invalid: {measured.reason}")
    if any(lost_state(name, measured) == UNSURE for name in METRICS):
        return no("refused", f"{UNSURE}: measure it again")
    try:
        new = _store_cell(measured, run_id)
    except ValidationError as error:
        return no("refused", f"invalid: {facts.first_problem(error)}")
    if old is not None and _same(old, new, run_id):
        return no("kept", "unchanged")

    capacity_lost = bool(old and new.over_capacity and not old.over_capacity)
    is_new = old is None or bool(old.over_capacity and not new.over_capacity)
    verdicts = {comparison.verdict for comparison in record.comparisons}
    worse = not verdicts.isdisjoint(("worse", "watched", "missing")) or capacity_lost
    better = "better" in verdicts and not worse
    leans = not record.failed and any(_lean(c) in moved for c in record.comparisons)
    wanted = {
        "moved": is_new or worse or better or leans,
        "new": is_new,
        "better": better,
        "all": True,
        "add": True,
    }[mode]
    if not wanted:
        return no("kept", f"not for --llm-update-mode {mode}")
    if worse and not reason:
        what = "does not fit any more" if capacity_lost else "worse than the baseline"
        return no("refused", f'{what}; --llm-update-reason "…" accepts it')
    why = (
        "new" if is_new else "worse" if worse else "better" if better
        else "moved as others did" if leans else "within its noise"
    )  # fmt: skip
    if old and not old.over_capacity and not new.over_capacity:
        new = _append(old, new, new_level=mode != "add")
    return Decision(record.cell, "accepted", why), new


def _lean(comparison: Comparison) -> Move | None:
    """Which way a metric moved that moved by more than half its tolerance.

    In a cell alone that may be chance. Where the same metric moved for certain in another cell of
    the run it is more likely the same change, which a noisy cell must not stay behind of.
    """
    baseline, measured, tolerance = comparison.baseline, comparison.measured, comparison.tolerance
    if baseline is None or measured is None or tolerance is None:
        return None
    if abs(measured / baseline - 1) <= tolerance / 2:
        return None
    worse = METRICS[comparison.metric].worse(measured, baseline)
    return comparison.metric, "worse" if worse else "better"


def _store_cell(measured: Measurement, run_id: str) -> CellBaseline:
    """A measurement as a cell of one run.

    Raises:
        ValidationError: a value that no server can have, or no value at all.
    """
    if measured.status is Status.OVER_CAPACITY:
        capacity = measured.capacity
        known = {"needs": capacity.needs, "budget": capacity.budget} if capacity else {}
        return CellBaseline.model_validate({"runs": [run_id], "over_capacity": known})
    figures = {
        name: [value]
        for name in STORED
        if _stores(name, measured) and (value := getattr(measured, name)) is not None
    }
    return CellBaseline.model_validate({"runs": [run_id], **figures})


def _stores(name: str, measured: Measurement) -> bool:
    """Whether a baseline takes this value: not one of a cold prompt, say, beside those of warm
    ones."""
    phases = METRICS[name].phases if name in METRICS else (measured.phase,)
    return measured.phase in phases and not lost_state(name, measured)


def _same(old: CellBaseline, new: CellBaseline, run_id: str) -> bool:
    """Whether the baseline holds this already: no second update may change the file."""
    if old.over_capacity or new.over_capacity:
        return old.over_capacity == new.over_capacity
    return old.figures(run_id if run_id in old.runs else old.runs[-1]) == new.figures(run_id)


def _append(old: CellBaseline, new: CellBaseline, *, new_level: bool) -> CellBaseline:
    """Put the one run of ``new`` behind those of ``old``.

    As a new level it speaks for itself, and the runs before it for the noise only. Beyond ten runs
    those go that say least: older levels, then the oldest that do not speak for the level.
    """
    figures = {run: cell.figures(run) for cell in (old, new) for run in cell.runs}
    levels = [run for run in old.levels if run in figures]
    levels += new.runs if new_level and new.runs[0] not in old.runs else []
    runs = list(figures)
    first = runs.index(levels[-1]) if levels else 0
    speaking = runs[first : first + LEVEL_RUNS]
    later = runs[first + LEVEL_RUNS :]
    room = KEEP_RUNS - len(speaking)
    kept = later[-room:] if room else []
    earlier = runs[:first][-(room - len(kept)) :] if room > len(kept) else []
    runs = [*earlier, *speaking, *kept]
    present = {name for run in runs for name in figures[run]}
    lists = {name: [figures[run].get(name) for run in runs] for name in STORED if name in present}
    marks = [run for run in levels if run in runs[1:]]
    return CellBaseline.model_validate({"runs": runs, "levels": marks, **lists})


def _merge(
    old: Baseline | None,
    run: RunResult,
    run_id: str,
    run_facts: Run,
    cells: Mapping[str, CellBaseline],
) -> Baseline:
    used = {name for cell in cells.values() for name in cell.runs}
    runs = {**(old.runs if old else {}), run_id: run_facts}
    base = old or facts.new_profile(run)
    # settings that an old file did not know are known once none of its values counts
    speaking = {name for cell in cells.values() for name in cell.level_runs}
    known = base.settings if speaking != {run_id} else facts.known_settings(run)
    return base.model_copy(
        update={
            "runs": {name: runs[name] for name in runs if name in used},
            "cells": dict(cells),
            "settings": known.model_copy(update=_axes(base.settings, map(Cell.parse, cells))),
        }
    )


def _axes(settings: BaselineSettings, cells: Iterable[Cell]) -> dict[str, list[int]]:
    """The declared grid, grown to hold every cell."""
    stored = list(cells)
    decode = [cell for cell in stored if cell.phase == "decode"]
    present = {
        "contexts": {cell.context for cell in decode},
        "concurrency": {cell.concurrency for cell in decode},
        "prefill_contexts": {cell.context for cell in stored if cell.phase == "prefill"},
    }
    axes = {}
    for name, values in present.items():
        declared = getattr(settings, name)
        axes[name] = declared if values <= set(declared) else sorted(values.union(declared))
    return axes
