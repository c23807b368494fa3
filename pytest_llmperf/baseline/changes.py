"""What differs between a run and the newest run of its baseline, and may explain a change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median

from pytest_llmperf.baseline.match import plain_gpu
from pytest_llmperf.baseline.schema import Baseline, Run
from pytest_llmperf.model.result import ChangedFact, Measurement, Notice, ServerInfo

KV_LOST = 0.02
"""A KV cache smaller by more than this fraction is a finding; starts of a build differ by less."""

CLOCK_MOVED = 0.03
"""Clocks that differ by no more than this fraction are the same: they follow load and warmth."""

MAX_NUM_SEQS, SM_MHZ = "max_num_seqs", "sm_mhz"
"""Keys of what a stored run knows beyond its fields."""

_TOLD = {
    "commit": "commit",
    "build": "build",
    "backend": "backend",
    "revision": "model revision",
    "driver": "driver",
}
"""Fields of a stored run that ``--llm-run-info`` or the GPUs tell, no server -> their names."""


def observe(server: ServerInfo, measured: Iterable[Measurement]) -> dict[str, str]:
    """What was seen of a run beside what it was told, as a stored run keeps it in ``info``."""
    seen = {}
    if server.max_num_seqs:
        seen[MAX_NUM_SEQS] = str(server.max_num_seqs)
    clocks = [gpu.sm_mhz for one in measured for gpu in one.gpus if gpu.sm_mhz]
    if clocks:
        seen[SM_MHZ] = f"{median(clocks):.0f}"
    return seen


def newest(baseline: Baseline) -> Run | None:
    """The run of a baseline that was measured last."""
    return max(baseline.runs.values(), key=lambda run: run.date or "", default=None)


def list_changes(
    baseline: Baseline,
    server: ServerInfo,
    told: Mapping[str, str | int | float],
    measured: Iterable[Measurement] = (),
) -> list[ChangedFact]:
    """The facts that differ; what either side does not tell is none.

    Args:
        baseline: its newest run is compared with.
        server: what answers now.
        told: hardware that was detected, and what ``--llm-run-info`` tells.
        measured: what was measured so far, for the GPUs' clocks.
    """
    run = newest(baseline)
    if run is None:
        return []
    seen = {**told, **observe(server, measured)}
    known = run.info
    version = server.version or told.get("engine_version")
    quantization = server.quantization or told.get("quantization")
    found = [
        _differs("engine version", run.engine_version, version),
        _differs("quantization", run.quantization, quantization),
        *(_differs(name, getattr(run, field), told.get(field)) for field, name in _TOLD.items()),
        _differs(MAX_NUM_SEQS, known.get(MAX_NUM_SEQS), seen.get(MAX_NUM_SEQS)),
        _differs("longest sequence", run.max_model_len, server.max_model_len),
        _moved("KV cache", run.kv_tokens, server.kv_tokens, KV_LOST, "tokens"),
        _differs("GPU", baseline.hardware.gpu, told.get("gpu"), plain_gpu),
        _differs("power limit in W", known.get("power_limit_w"), told.get("power_limit_w")),
        _moved("SM clock", known.get(SM_MHZ), seen.get(SM_MHZ), CLOCK_MOVED, "MHz"),
    ]
    return [fact for fact in found if fact is not None]


def find_lost_kv(baseline: Baseline, server: ServerInfo) -> list[Notice]:
    """A finding where the server holds less than it did in the newest run that tells of it.

    Cells that still fit do not show it: with fewer tokens of room a server preempts and refuses
    earlier. A size that the user gave says nothing of the server.
    """
    known = [run for run in baseline.runs.values() if run.kv_tokens]
    before = max(known, key=lambda run: run.date or "").kv_tokens if known else None
    here = server.kv_tokens
    if not before or not here or server.kv_source.startswith("--llm-"):
        return []
    if here >= before * (1 - KV_LOST):
        return []
    text = (
        f"the KV cache is {1 - here / before:.0%} smaller than in the baseline: {before:,} -> "
        f"{here:,} tokens; look for memory that something else holds, and for the server's memory "
        "settings; accepted with --update-baselines --llm-update-mode add --llm-update-reason"
    )
    return [Notice(code="kv-cache", text=text)]


def _differs(
    field: str, before: object, here: object, plain: Callable[[str], str] = str
) -> ChangedFact | None:
    if before in (None, "") or here in (None, "") or plain(str(before)) == plain(str(here)):
        return None
    return ChangedFact(field=field, baseline=str(before), here=str(here))


def _moved(
    field: str, before: int | str | None, here: float | str | None, least: float, unit: str
) -> ChangedFact | None:
    """A number that differs by more than this fraction."""
    try:
        numbers = float(before or 0), float(here or 0)
    except ValueError:  # of a file that somebody wrote
        return None
    if not all(numbers) or abs(numbers[1] / numbers[0] - 1) <= least:
        return None
    was, now = (f"{number:,.0f}" for number in numbers)
    return ChangedFact(field=field, baseline=was, here=f"{now} {unit}")
