"""The run in one line: the banner of every report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_llmperf.model.result import DRY_RUN, CellRecord, Outcome, RunResult, Status
from pytest_llmperf.report.cells import list_watched, status
from pytest_llmperf.report.numbers import count

Level = Literal["pass", "fail", "info"]


@dataclass(frozen=True)
class Verdict:
    """The run in one line; ``detail`` says what to know beside it."""

    level: Level
    headline: str
    detail: str = ""


def changed(run: RunResult) -> str:
    """The facts that differ from the baseline's, as a sentence; empty if none does."""
    facts = "; ".join(map(str, run.changed_facts))
    return f"Changed since the baseline: {facts}." if facts else ""


def verdict_of(run: RunResult, records: Sequence[CellRecord]) -> Verdict:
    """What a run came to; failures before what is merely incomplete."""
    total = count(len(records), "cell")
    failures = [record for record in records if record.failed]
    early = run.interrupted or ("" if run.finished else "not finished")
    stopped = f"Stopped early: {early}" if early else ""
    detail = " ".join(filter(None, (changed(run), stopped)))
    if failures:
        tally = Counter(record.outcome.value.lower() for record in failures)
        words = ", ".join(f"{n} {word}" for word, n in tally.items())
        words += "; so did the matrix as a whole" if run.matrix else ""
        words += "".join(f"; and the server: {finding.code}" for finding in run.findings)
        return Verdict("fail", f"{len(failures)} of {total} failed: {words}", detail)
    measured = [r for r in records if status(r) is Status.VALID]
    if not measured:
        return Verdict("fail", "Nothing was measured", detail)
    if run.matrix:
        return Verdict("fail", f"{total} together are worse than their baseline", detail)
    if run.findings:
        what = ", ".join(finding.code for finding in run.findings)
        return Verdict("fail", f"The server is not what it was: {what}", detail)
    if run.failed_tests:
        own = f"{count(len(run.failed_tests), 'test')} failed, though no cell did"
        return Verdict("fail", own, detail)
    if early:
        return Verdict("info", f"Incomplete: {total} measured or judged", stopped)
    if run.not_updated:
        level: Level = "info" if run.not_updated == DRY_RUN else "fail"
        return Verdict(level, "Baseline not updated", f"Why: {run.not_updated}.")
    if updated := [r for r in measured if r.outcome is Outcome.UPDATED]:
        good = f"{len(updated)} of {total} updated, none failed"
        return Verdict("info", good, f"Baseline {run.profile}.")
    outcomes = {record.outcome for record in measured}
    if outcomes == {Outcome.MEASURED}:
        if limited := [r for r in measured if r.limits]:
            held = f"No limit is broken in {count(len(limited), 'measured cell')}"
            return Verdict("pass", held, "Compared with no baseline.")
        why = "no baseline applied" if run.profile else "no hardware profile was named"
        seen = count(len(measured), "cell")
        return Verdict("info", f"{seen} measured, nothing compared", f"Why: {why}.")
    if outcomes == {Outcome.NEW}:
        why = "Every cell is new, so this run is not green."
        return Verdict("fail", "Nothing to compare with", why)
    judged = [r for r in measured if r.outcome in (Outcome.PASS, Outcome.IMPROVED)]
    if not judged:
        why = "Every cell is new or too noisy, so this run is not green."
        return Verdict("fail", "Nothing could be judged", why)
    good = f"No regression in {count(len(judged), 'measured cell')}"
    what = run.against or f"the baseline {run.profile}"
    rest = len(measured) - len(judged)
    more = f" {rest} more could not be judged." if rest else ""
    if watched := sum(bool(list_watched(record)) for record in measured):
        more += (
            f" {count(watched, 'cell')} would have failed by what is only watched: see the notes."
        )
    return Verdict("pass", good, f"Against {what}.{more}")
