"""The health of a load that several processes made: the worst of all, and each host by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.client.health import client_bound
from pytest_llmperf.measure.clocks import Tie
from pytest_llmperf.model.result import ClientHealth, LoadHost


@dataclass(frozen=True)
class Part:
    """What one process did of a load."""

    host: str
    local: bool
    streams: int
    tokens: int
    health: ClientHealth
    tie: Tie
    """Of its clock and ours."""


def merge_healths(parts: Sequence[Part]) -> ClientHealth:
    """The worst of each value: one process that cannot keep up spoils the cell. With the hosts, if
    one is not this one."""
    hosts: list[LoadHost] = []
    if not all(part.local for part in parts):
        total = sum(part.tokens for part in parts)
        for name in dict.fromkeys(part.host for part in parts):
            hosts.append(_host(name, [part for part in parts if part.host == name], total))
    return _worst([part.health for part in parts]).model_copy(update={"hosts": hosts})


def _host(name: str, parts: Sequence[Part], total: int) -> LoadHost:
    health = _worst([part.health for part in parts])
    away = [part.tie for part in parts if not part.local]
    unsure = max(away, key=lambda tie: tie.error, default=None)
    return LoadHost(
        name=name,
        processes=len(parts),
        streams=sum(part.streams for part in parts),
        share=sum(part.tokens for part in parts) / total if total else None,
        cpu_share=health.cpu_share,
        loop_lag_p99_ms=health.loop_lag_p99_ms,
        bound=client_bound(health) or "",
        clock_offset_ms=unsure.offset * 1e3 if unsure else None,
        clock_error_ms=unsure.error * 1e3 if unsure else None,
    )


def _worst(healths: Sequence[ClientHealth]) -> ClientHealth:
    found: dict[str, Any] = {"workers": len(healths)}
    for name in ClientHealth.model_fields.keys() - found.keys() - {"hosts"}:
        values = [v for health in healths if (v := getattr(health, name)) is not None]
        # of words the last in the alphabet: "stock" and "program" are the coarser ones
        found[name] = max(values, key=abs if name == "clock_moved_ms" else None, default=None)
    return ClientHealth(**found)
