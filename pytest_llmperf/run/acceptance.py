"""``--update-baselines`` at the end of a run: what it did, or why not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_llmperf.baseline import update
from pytest_llmperf.baseline.file import Loaded
from pytest_llmperf.baseline.profiles import profile_path
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.result import DRY_RUN, RunResult
from pytest_llmperf.model.settings import Settings


@dataclass(frozen=True)
class Acceptance:
    """What an update did."""

    text: str
    """For the terminal."""
    why_not: str = ""
    """Why nothing was written: ``DRY_RUN``, or what is wrong."""
    cells: frozenset[str] = frozenset()
    """Ids of those whose values the baseline holds now."""

    @property
    def refused(self) -> bool:
        return self.why_not not in ("", DRY_RUN)


def accept(
    settings: Settings, profile: Loaded | None, result: RunResult, empty: str, before: str | None
) -> Acceptance:
    """Put a run into its profile, if it may.

    Args:
        profile: as it was before the run.
        empty: why the run is not green, if it is not.
        before: the profile's text that the difference is shown to; None shows none, as of several
            runs the last one shows what all of them changed.
    """
    assert settings.hardware is not None
    path = profile_path(settings.hardware, settings.baselines_dir)
    try:
        plan = update.plan(
            profile,
            result,
            mode=settings.update_mode,
            reason=settings.update_reason,
            prune=settings.prune,
        )
        for finding in result.findings:
            raise ConfigError(f"baseline not updated: {finding.text}")
        if empty:
            raise ConfigError(f"baseline not updated: {empty}")
        if not settings.dry_run:
            update.apply(plan, path, profile)
    except ConfigError as error:
        return Acceptance(str(error), str(error).removeprefix("baseline not updated: "))
    done = "would change" if settings.dry_run else "updated" if plan.before else "made"
    diff = replace(plan, before=before).diff(path.name) if before is not None else ""
    what = f"{done}:\n{diff}" if diff else done if plan.changed else "is unchanged"
    lines = [f"{path} {what}"]
    lines += [f"refused: {d.cell}: {d.why}" for d in plan.decisions if d.action == "refused"]
    return Acceptance("\n".join(lines), DRY_RUN if settings.dry_run else "", plan.accepted)
