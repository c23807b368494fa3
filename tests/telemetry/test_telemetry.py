"""The server's GPUs by NVML: what is read, when it is read, and when nothing may be said."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.baseline.match import compare
from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.model.result import Measurement, RunSettings, ServerInfo, Status
from pytest_llmperf.report.fields import fields
from pytest_llmperf.server import telemetry as module
from pytest_llmperf.server.telemetry import Telemetry, Watched, is_here, open_telemetry
from tests.telemetry.nvml import GIB, FakeGpu, FakeNvml

HERE = "http://127.0.0.1:8000"
MEASURED = Measurement(
    phase="decode",
    context=8192,
    concurrency=4,
    status=Status.VALID,
    started="2026-01-01T00:00:00+00:00",
    method=1,
)
Opener = Callable[..., Telemetry]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Opens the telemetry of a host with these GPUs."""
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)

    def open_with(*gpus: FakeGpu, url: str = HERE, **options: object) -> Telemetry:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*gpus, **options))  # type: ignore[arg-type]
        return open_telemetry(url)

    return open_with


def watch(telemetry: Telemetry, seconds: float = 0.1) -> Watched:
    with telemetry.watching(lambda: True) as watched:
        time.sleep(seconds)
    return watched


def test_values_are_in_the_units_their_names_say(opened: Opener) -> None:
    """Milliwatts, percent and bytes become watts, a fraction and GB."""
    (gpu,) = watch(opened(FakeGpu())).added_to(MEASURED).gpus
    assert gpu.model_dump() == {
        "index": 0,
        "name": "NVIDIA H200",
        "power_w": 412.345,
        "power_max_w": 412.345,
        "power_limit_w": 700.0,
        "sm_mhz": 1980,
        "sm_min_mhz": 1980,
        "memory_mhz": 3201,
        "temperature_max_c": 51,
        "utilisation": 0.97,
        "memory_used_gb": 123.38,
        "held_share": 0.0,
        "held_by": [],
    }


def test_means_and_extremes_are_over_the_window_alone(opened: Opener) -> None:
    """What is read before the window opens and after it closes does not count."""
    fake = FakeGpu(milliwatts=90_000, sm=345)
    telemetry = opened(fake)
    inside = threading.Event()
    with telemetry.watching(inside.is_set) as watched:
        time.sleep(0.05)
        fake.milliwatts, fake.sm = 400_000, 1980
        inside.set()
        _wait_for(lambda: len(watched.readings) >= 3)
        fake.milliwatts, fake.sm = 600_000, 1500
        before = len(watched.readings)
        _wait_for(lambda: len(watched.readings) >= before + 3)
        inside.clear()
        fake.milliwatts = 90_000
        time.sleep(0.05)
    (gpu,) = watched.added_to(MEASURED).gpus
    assert (gpu.power_max_w, gpu.sm_min_mhz) == (600.0, 1500)
    assert gpu.power_w is not None
    assert 400 < gpu.power_w < 600


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_nothing_is_read_after_a_cell(opened: Opener) -> None:
    """The thread ends with the cell, broken off or not."""
    fake = FakeGpu()
    telemetry = opened(fake)
    with pytest.raises(RuntimeError), telemetry.watching(lambda: True):
        raise RuntimeError("the cell broke off")
    read = fake.read
    time.sleep(0.05)
    assert fake.read == read
    assert not any(thread.name == "llmperf-gpus" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("reasons", "held_by", "warned"),
    [
        (0x01, [], False),  # idle
        (0x04, ["power cap"], False),
        (0x40, ["thermal slowdown (hardware)"], True),
        (0x0C, ["power cap", "hardware slowdown"], True),
        (0x80, ["power brake"], True),
    ],
)
def test_a_gpu_that_was_slowed_down_is_a_warning_on_the_cell(
    opened: Opener, reasons: int, held_by: list[str], warned: bool
) -> None:
    """Heat and power faults are; the power cap, which many GPUs run at, is only shown."""
    measurement = watch(opened(FakeGpu(reasons=reasons, celsius=88))).added_to(MEASURED)
    assert measurement.gpus[0].held_by == held_by
    assert measurement.gpus[0].held_share == (1.0 if held_by else 0.0)
    codes = [notice.code for notice in measurement.warnings]
    assert codes == (["gpu-throttled"] if warned else [])
    if warned:
        assert "88 °C" in measurement.warnings[0].text


def test_reasons_are_read_by_their_older_name_too(opened: Opener) -> None:
    """Drivers before 535 know nvmlDeviceGetCurrentClocksThrottleReasons only."""
    (gpu,) = watch(opened(FakeGpu(reasons=0x20), old=True)).added_to(MEASURED).gpus
    assert gpu.held_by == ["thermal slowdown (software)"]


def test_what_a_gpu_does_not_tell_is_absent(opened: Opener) -> None:
    """None, not 0 W."""
    (gpu,) = watch(opened(FakeGpu(milliwatts=None, limit=None))).added_to(MEASURED).gpus
    assert (gpu.power_w, gpu.power_max_w, gpu.power_limit_w) == (None, None, None)
    assert gpu.sm_mhz == 1980


def test_the_servers_gpus_are_those_that_hold_a_model(opened: Opener) -> None:
    """A host has more GPUs than a server uses; an idle one is neither counted nor read."""
    telemetry = opened(FakeGpu(), FakeGpu(used=GIB // 2), FakeGpu(), driver=b"580.65.06")
    assert telemetry.facts == {
        "gpu": "NVIDIA H200",
        "gpu_count": "2",
        "vram_gb": "281",
        "os": sys.platform,
        "power_limit_w": "700",
        "driver": "580.65.06",
    }
    assert [gpu.index for gpu in watch(telemetry).added_to(MEASURED).gpus] == [0, 2]


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        (FakeGpu(percent=0), None),
        (FakeGpu(percent=64), "gpu-busy"),
        (FakeGpu(percent=0, pids=[4711, 4712]), "gpu-shared"),
    ],
)
def test_who_else_is_on_the_gpus_is_said_before_the_run(
    opened: Opener, gpu: FakeGpu, code: str | None
) -> None:
    """The server is idle then, so any work seen is another's."""
    notices = opened(gpu).look(wait=lambda seconds: None)
    assert [notice.code for notice in notices] == ([code] if code else [])


def test_a_moment_of_work_before_the_run_is_no_other_traffic(opened: Opener) -> None:
    """The utilisation must stay up over the readings."""
    gpu = FakeGpu(percent=64)

    def wait(seconds: float) -> None:
        gpu.percent = 0

    assert opened(gpu).look(wait=wait) == []


def test_a_server_elsewhere_is_not_told_about_by_our_gpus(opened: Opener) -> None:
    """Neither facts nor readings."""
    telemetry = opened(FakeGpu(), url="http://192.0.2.7:8000")
    assert telemetry.facts == {}
    assert watch(telemetry, 0.03).added_to(MEASURED) == MEASURED
    assert telemetry.look() == []


@pytest.mark.parametrize("nvml", [None, "no driver"])
def test_without_the_package_or_a_driver_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, nvml: str | None
) -> None:
    """And nothing is said."""
    fake = None
    if nvml:

        class NoDriver(FakeNvml):
            def nvmlInit(self) -> None:  # noqa: N802
                raise self.NVMLError(nvml)

        fake = NoDriver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    assert open_telemetry(HERE).facts == {}


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("192.0.2.7", False), ("", False)],
)
def test_this_host_is_told_from_others(host: str, here: bool) -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    assert is_here(host) is here


@pytest.mark.parametrize(
    ("name", "count", "differs"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 4, []),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, ["gpu_count"]),
        ("NVIDIA H200", 4, ["gpu"]),
    ],
)
def test_another_gpu_or_number_of_them_does_not_compare(
    opened: Opener, name: str, count: int, differs: list[str]
) -> None:
    """Detected facts are held against the profile; NVML's name is that of the report."""
    profile = load(shipped("baselines") / "rtxpro6k_x4.yaml")
    server = ServerInfo(engine="vllm", model="deepseek")
    settings = RunSettings(
        duration_s=30,
        max_tokens=4096,
        method=1,
        endpoint="chat",
        prompts="shared",
        sampling="temperature=1 top_p=1",
        text_hash="a",
        capacity="reserved",
        contexts=[8192],
        concurrency=[1],
        prefill_contexts=[8192],
    )
    facts = opened(*(FakeGpu(name=name) for _ in range(count))).facts
    matching = compare(profile, server, settings, facts)
    assert [fact.field for fact in matching.mismatches] == differs


def test_the_drill_down_shows_every_gpu_with_units(opened: Opener) -> None:
    """One group of lines a GPU."""
    measurement = watch(opened(FakeGpu(), FakeGpu(celsius=60))).added_to(MEASURED)
    shown = {field.label: field.entries[0].text for field in fields([measurement])}
    assert shown["GPU 0: Power, W"] == "412.345"
    assert shown["GPU 0: SM, MHz"] == "1,980"
    assert shown["GPU 1: Temperature max, °C"] == "60"
