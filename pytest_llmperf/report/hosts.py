"""Where a run's load came from: each host's share and health, over all cells."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from pytest_llmperf.model.result import CellRecord, LoadHost
from pytest_llmperf.report.numbers import count


def describe_hosts(records: Iterable[CellRecord]) -> list[tuple[str, str]]:
    """Name and words of each host; none where all load came from this one.

    The share is the mean over cells, the rest the worst of any.
    """
    seen: dict[str, list[LoadHost]] = {}
    for record in records:
        for host in record.measurement.client.hosts if record.measurement else ():
            seen.setdefault(host.name, []).append(host)
    return [(name, _describe(found)) for name, found in seen.items()]


def _describe(found: list[LoadHost]) -> str:
    parts = [count(max(host.processes for host in found), "process", "processes")]
    if shares := [host.share for host in found if host.share is not None]:
        parts.append(f"{fmean(shares):.0%} of the tokens")
    if used := [host.cpu_share for host in found if host.cpu_share is not None]:
        parts.append(f"the busiest used {max(used):.0%} of a core")
    if errors := [host.clock_error_ms for host in found if host.clock_error_ms is not None]:
        parts.append(f"clock ±{max(errors):.2g} ms")
    if bound := sum(bool(host.bound) for host in found):
        parts.append(f"could not keep up in {count(bound, 'cell')}")
    return ", ".join(parts)
