"""Health of a load that several hosts made."""

from __future__ import annotations

from pytest_llmperf.client.health import client_bound
from pytest_llmperf.measure.clocks import SAME, Tie
from pytest_llmperf.measure.loadhealth import Part, merge_healths
from pytest_llmperf.measure.validity import clock_notices
from pytest_llmperf.model.result import ClientHealth


def part(
    host: str = "gpu2", error_s: float = 1e-4, tokens: int = 300, cpu_share: float = 0.2
) -> Part:
    here = host == "this host"
    health = ClientHealth(cpu_share=cpu_share, loop_lag_p99_ms=1.0, stamps="kernel")
    return Part(host, here, 4, tokens, health, SAME if here else Tie(7.0, error_s))


def test_the_worst_of_all_processes_is_the_loads() -> None:
    merged = merge_healths([part("this host", cpu_share=0.5), part("this host", cpu_share=0.1)])
    assert (merged.workers, merged.cpu_share, merged.stamps) == (2, 0.5, "kernel")
    assert merged.hosts == []


def test_each_host_has_its_share_and_its_clock() -> None:
    """Of two processes on a host the clock that is known worse."""
    merged = merge_healths([part("this host", tokens=400), part(error_s=2e-4), part(error_s=3e-4)])
    here, away = merged.hosts
    assert (here.name, here.processes, here.streams, here.share) == ("this host", 1, 4, 0.4)
    assert (here.clock_offset_ms, here.clock_error_ms) == (None, None)
    assert (away.name, away.processes, away.streams, away.share) == ("gpu2", 2, 8, 0.6)
    assert (away.clock_offset_ms, away.clock_error_ms) == (7000.0, 0.3)


def test_a_host_that_cannot_keep_up_is_named() -> None:
    """Its load spoils the cell, as that of this process would."""
    merged = merge_healths([part("this host"), part(cpu_share=0.99)])
    assert (client_bound(merged) or "").startswith("gpu2: client bound: the client used 99%")
    assert client_bound(merge_healths([part("this host"), part()])) is None


def test_an_unsure_clock_is_named_and_a_very_unsure_one_gates_no_ttft() -> None:
    def codes(error_s: float) -> list[tuple[str, bool]]:
        found = clock_notices(merge_healths([part("this host"), part(error_s=error_s)]))
        return [(notice.code, "gpu2" in notice.text) for notice in found]

    assert codes(0.9e-3) == []
    assert codes(1.1e-3) == [("clock-error", True)]
    assert codes(5.1e-3) == [("clock-unsure", True)]
