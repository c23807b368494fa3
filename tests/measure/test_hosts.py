"""Load from other hosts: by ssh on the loopback address, and over a network with a delay."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from pytest_llmperf.measure import pool as pools
from pytest_llmperf.measure.clocks import UNGATED_S
from pytest_llmperf.measure.crew import Crew
from pytest_llmperf.measure.pool import Place
from pytest_llmperf.measure.remoteload import RemoteLoad
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.result import Measurement, Status
from pytest_llmperf.model.settings import Connection
from tests.measure.paced import PATH, QUICK, Paced, measuring
from tests.measure.test_workers import BODY, all_decode, is_gone, measure, wait_until
from tests.support.network import NoNetwork, Relay, namespace
from tests.support.scripted import ScriptedServer
from tests.support.sshd import Sshd, running_sshd, why_missing

needs_sshd = pytest.mark.skipif(bool(why_missing()), reason=why_missing())


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with running_sshd() as server:
        yield server


@needs_sshd
def test_a_host_measures_what_the_server_did(sshd: Sshd) -> None:
    """Two processes over ssh and one of this host: tok/s, ITL, TTFT and streams are the server's,
    as from one process; the result says what each host did."""
    paced = Paced(ttft=0.1, step=0.1, per_chunk=4)
    specs = [sshd.spec(sys.executable)] * 2 + ["popen"]
    with (
        measuring(paced, timing=replace(QUICK, duration_s=3.0)) as (measurer, _),
        closing(Crew(load=specs)) as crew,
    ):
        crew.open()
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 7)
    assert (found.status, found.reason) == (Status.VALID, "")
    assert found.total_tok_s == pytest.approx(7 * 40, rel=0.02)
    assert found.itl_ms == pytest.approx(25, rel=0.02)
    assert found.ttft_ms == pytest.approx(100, abs=20)
    assert found.decoding_avg == pytest.approx(7)
    assert paced.peak == 7
    away, here = found.client.hosts
    assert (away.name, away.processes, away.streams) == ("loadhost", 2, 5)
    assert (here.name, here.processes, here.streams) == ("this host", 1, 2)
    assert away.share == pytest.approx(5 / 7, abs=0.02)
    assert here.clock_offset_ms is None
    # both are this machine, whose clock is ahead of itself by nothing
    assert away.clock_offset_ms is not None
    assert away.clock_error_ms is not None
    assert abs(away.clock_offset_ms) <= away.clock_error_ms


@needs_sshd
@pytest.mark.parametrize(
    ("there_ms", "back_ms", "code"), [(3, 0, "clock-error"), (0, 14, "clock-unsure")]
)
def test_a_far_hosts_clock_is_as_unsure_as_it_says(
    sshd: Sshd, there_ms: float, back_ms: float, code: str
) -> None:
    """A way that is slow in one direction only, the worst there is: the offset, which is 0, lies
    within the error that is told, and neither streams nor their times are less right for it."""
    paced = Paced(ttft=0.1, step=0.1, per_chunk=4)
    with (
        Relay(sshd.port, there_ms / 1e3, back_ms / 1e3) as relay,
        measuring(paced, timing=replace(QUICK, duration_s=2.0)) as (measurer, _),
        closing(Crew(load=[sshd.spec(sys.executable, relay.port), "popen"])) as crew,
    ):
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 4)
    assert_sound(found, least_error_ms=(there_ms + back_ms) / 2)
    error_ms = found.client.hosts[0].clock_error_ms or 0.0
    # a busy machine may answer later than the relay makes it
    late = error_ms > UNGATED_S * 1e3
    assert ("clock-unsure" if late else code) in {notice.code for notice in found.warnings}
    assert found.ttft_ms == pytest.approx(100, abs=20)


@needs_sshd
@pytest.mark.parametrize("delay_ms", [0, 4])
def test_a_host_in_another_network(delay_ms: float) -> None:
    """Its way to the server is longer by the delay, and so is its TTFT; nothing else changes."""
    paced = Paced(ttft=0.1, step=0.1, per_chunk=4)
    with ExitStack() as stack:
        try:
            net = stack.enter_context(namespace(delay_ms))
        except NoNetwork as why:
            pytest.skip(str(why))
        far = stack.enter_context(running_sshd(address=net.there, prefix=net.enter))
        timing = replace(QUICK, duration_s=2.0)
        measurer, _ = stack.enter_context(measuring(paced, timing=timing, host=net.here))
        crew = stack.enter_context(closing(Crew(load=[far.spec(sys.executable)] * 2)))
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 4)
    assert_sound(found, least_error_ms=delay_ms / 2)
    assert found.ttft_ms == pytest.approx(100 + delay_ms, abs=20)


def assert_sound(found: Measurement, least_error_ms: float) -> None:
    """Four streams of four tokens every 100 ms, and a first host with the clock of this one."""
    assert (found.status, found.reason) == (Status.VALID, "")
    assert found.total_tok_s == pytest.approx(4 * 40, rel=0.02)
    assert found.itl_ms == pytest.approx(25, rel=0.02)
    away = found.client.hosts[0]
    assert away.clock_offset_ms is not None
    assert away.clock_error_ms is not None
    assert abs(away.clock_offset_ms) <= away.clock_error_ms
    assert away.clock_error_ms >= 0.99 * least_error_ms


@needs_sshd
def test_a_host_that_dies_makes_the_cell_invalid_by_its_name(sshd: Sshd) -> None:
    class Killing(RemoteLoad):
        async def run_window(self, t0: float, t1: float, limit: float) -> None:
            asyncio.get_running_loop().call_later(0.3, os.kill, self.pids[1], signal.SIGKILL)
            await super().run_window(t0, t1, limit)

    with (
        pytest.MonkeyPatch.context() as patch,
        measuring(Paced(), timing=replace(QUICK, duration_s=20.0)) as (measurer, _),
        closing(Crew(load=["popen", sshd.spec(sys.executable)])) as crew,
    ):
        patch.setattr("pytest_llmperf.measure.setup.RemoteLoad", Killing)
        measurer._setup = replace(measurer._setup, crew=crew)
        found = measure(measurer, 4)
    assert found.status == Status.INVALID
    assert found.reason.startswith("load process 2 of 2 on loadhost ended during the measurement")
    assert found.total_tok_s is None


@needs_sshd
def test_processes_of_a_host_stay_up_until_the_session_closes(sshd: Sshd) -> None:
    """Two loads have the same processes; after the end there is none, on the other host either."""
    with (
        ScriptedServer({PATH: Paced()}) as server,
        closing(Crew(load=["popen", sshd.spec(sys.executable)])) as crew,
    ):

        async def load() -> list[int | None]:
            load = RemoteLoad(
                crew.pool,
                crew.pick(2),
                Connection(server.url),
                PATH,
                [BODY] * 2,
                first_token_s=5.0,
                stall_s=5.0,
            )
            await load.open()
            pids = load.pids
            await load.start()
            await all_decode(load, 2)
            await load.finish()
            return pids

        first, second = asyncio.run(load()), asyncio.run(load())
        assert first == second
        assert not any(is_gone(pid) for pid in first if pid)
    wait_until(lambda: all(is_gone(pid) for pid in first if pid))


@needs_sshd
def test_a_host_without_the_package_is_told_the_command(sshd: Sshd) -> None:
    """A Python of another environment, as one has that was never prepared."""
    bare = sshd.spec(f"{sys._base_executable} -I -S")  # type: ignore[attr-defined]
    with closing(Crew(load=[bare])) as crew, pytest.raises(ConfigError) as caught:
        crew.open()
    assert "loadhost needs pytest-llmperf" in str(caught.value)
    assert "-m pip install 'pytest-llmperf[fast]==" in str(caught.value)


@needs_sshd
def test_a_host_of_another_version_is_told_the_command(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "__version__", "9.9.9")
    with (
        closing(Crew(load=[sshd.spec(sys.executable)])) as crew,
        pytest.raises(ConfigError, match=r"loadhost needs pytest-llmperf 9\.9\.9; .* there has"),
    ):
        crew.open()


@needs_sshd
def test_a_host_that_cannot_be_reached_is_named(sshd: Sshd) -> None:
    spec = sshd.spec(sys.executable).replace("loadhost", "-p 1 loadhost")
    with closing(Crew(load=["popen", spec])) as crew, pytest.raises(ConfigError) as caught:
        crew.open()
    assert "loadhost does not answer as a Python" in str(caught.value)
    assert "ssh loadhost python3 -V" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        ("popen", "this host"),
        ("popen//python=python3.12", "this host"),
        ("ssh=me@gpu2//python=python3", "me@gpu2"),
        ("ssh=-p 2222 -i key me@gpu2", "me@gpu2"),
        ("socket=gpu3:8888", "gpu3:8888"),
    ],
)
def test_a_host_is_named_as_the_user_did(spec: str, host: str) -> None:
    assert Place(spec).host == host
    assert Place(spec).local == (host == "this host")
