"""The server's GPUs, read by NVML while a cell runs, if they are on this host.

Needs the extra ``gpu``. Without it, without a driver, or with a server elsewhere nothing is known
and nothing is said.
"""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pytest_llmperf.model.result import GpuUse, Measurement, Notice

T = TypeVar("T")

INTERVAL_S = 0.5
SERVES_BYTES = 2**30
"""A GPU with less memory in use than this holds no model: it is not the server's."""
BUSY = 0.1
"""Utilisation of an idle server's GPU from which on somebody else is at work there."""
_BUSY_READINGS = 3
_BUSY_INTERVAL_S = 0.2
_GB = 2**30

# NVML's nvmlClocksEventReasons: bit -> words. The power cap is how many GPUs run under any load,
# so it is shown, and no cause for a warning; the others are.
POWER_CAP = "power cap"
_REASONS = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
_SM, _MEM = 1, 2
"""NVML's clock domains."""


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment. None: the GPU does not tell."""

    power_w: float | None
    sm_mhz: float | None
    memory_mhz: float | None
    temperature_c: float | None
    utilisation: float | None
    """0 to 1."""
    memory_bytes: int | None
    reasons: int = 0
    """Bits of why the clocks are held down."""


class Gpu:
    """One GPU, by NVML."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self.index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(self._handle)
        self.name: str = name.decode() if isinstance(name, bytes) else name
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        self.memory_bytes: int = memory.total if memory else 0
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        self.power_limit_w = None if limit_mw is None else limit_mw / 1000

    def read(self) -> Reading:
        """Read everything once."""
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            power_w=None if milliwatts is None else milliwatts / 1000,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", _SM),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", _MEM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", 0),
            utilisation=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            reasons=reasons or 0,
        )

    def processes(self) -> int:
        """How many processes compute on it; 0 also where that may not be known."""
        return len(self._ask("nvmlDeviceGetComputeRunningProcesses") or ())

    def _ask(self, function: str, *arguments: int) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None  # not on this kind of GPU, or not with this driver


@dataclass
class Watched:
    """What was read while a cell ran."""

    gpus: Sequence[Gpu]
    readings: list[list[Reading]] = field(default_factory=list)
    """In the window; one entry per GPU."""

    def added_to(self, measurement: Measurement) -> Measurement:
        """The measurement with the GPUs' use, and a warning if they were held back."""
        if not self.readings:
            return measurement
        uses = [
            _summarise(gpu, [row[i] for row in self.readings]) for i, gpu in enumerate(self.gpus)
        ]
        notices = [notice for use in uses if (notice := _throttled(use))]
        return measurement.model_copy(
            update={"gpus": uses, "warnings": [*measurement.warnings, *notices]}
        )


class Telemetry:
    """The GPUs of the server under test; none where there is nothing to read."""

    def __init__(self, gpus: Sequence[Gpu] = (), driver: str | None = None) -> None:
        self.gpus = gpus
        self._driver = driver

    @property
    def facts(self) -> Mapping[str, str]:
        """The hardware, by the names of ``--llm-run-info``."""
        if not self.gpus:
            return {}
        facts = {
            "gpu": " + ".join(dict.fromkeys(gpu.name for gpu in self.gpus)),
            "gpu_count": str(len(self.gpus)),
            "vram_gb": str(round(sum(gpu.memory_bytes for gpu in self.gpus) / _GB)),
            "os": platform.system().lower(),
        }
        limits = [f"{gpu.power_limit_w:g}" for gpu in self.gpus if gpu.power_limit_w]
        if limits:
            facts["power_limit_w"] = " + ".join(dict.fromkeys(limits))
        return {**facts, "driver": self._driver} if self._driver else facts

    def look(self, wait: Callable[[float], object] = time.sleep) -> list[Notice]:
        """Before the run, while the server is idle: who else is on its GPUs?"""
        notices = []
        lowest = dict.fromkeys(range(len(self.gpus)), 1.0)
        for _ in range(_BUSY_READINGS if self.gpus else 0):
            for i, gpu in enumerate(self.gpus):
                lowest[i] = min(lowest[i], gpu.read().utilisation or 0.0)
            wait(_BUSY_INTERVAL_S)
        for i, gpu in enumerate(self.gpus):
            if lowest[i] > BUSY:
                notices.append(
                    Notice(
                        code="gpu-busy",
                        text=f"GPU {gpu.index} is {lowest[i]:.0%} busy while the server is idle;"
                        " stop what else runs there",
                    )
                )
            elif gpu.processes() > 1:
                text = f"{gpu.processes()} processes share GPU {gpu.index}"
                notices.append(Notice(code="gpu-shared", text=text))
        return notices

    @contextlib.contextmanager
    def watching(self, in_window: Callable[[], bool]) -> Iterator[Watched]:
        """Read the GPUs twice a second, in a thread of its own, while the body measures.

        Args:
            in_window: whether what is read now belongs to the measurement.
        """
        watched = Watched(self.gpus)
        if not self.gpus:
            yield watched
            return
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(INTERVAL_S):
                if in_window():
                    watched.readings.append([gpu.read() for gpu in self.gpus])

        thread = threading.Thread(target=sample, name="llmperf-gpus", daemon=True)
        thread.start()
        try:
            yield watched
        finally:
            stop.set()
            thread.join(2 * INTERVAL_S)


def open_telemetry(url: str) -> Telemetry:
    """The GPUs that serve ``url``: those of this host that hold a model, if it is on this host."""
    if not is_here(urlsplit(url).hostname or ""):
        return Telemetry()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a package of an older name warns of itself
            import pynvml as nvml
        nvml.nvmlInit()
        gpus = [Gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        driver = nvml.nvmlSystemGetDriverVersion()
    except Exception:  # no package, no driver, no permission
        return Telemetry()
    serving = [gpu for gpu in gpus if (gpu.read().memory_bytes or 0) >= SERVES_BYTES]
    return Telemetry(serving, driver.decode() if isinstance(driver, bytes) else driver)


def is_here(host: str) -> bool:
    """Whether a host name is this host: its address can be bound to."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, str(address[0])) for family, _, _, _, address in found)


def _is_own(family: int, address: str) -> bool:
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _summarise(gpu: Gpu, readings: Sequence[Reading]) -> GpuUse:
    def over(name: str, reduce: Callable[[list[float]], float]) -> float | None:
        values = [v for reading in readings if (v := getattr(reading, name)) is not None]
        return round(reduce(values), 3) if values else None

    used = over("memory_bytes", max)
    held = [reading for reading in readings if any(bit & reading.reasons for bit in _REASONS)]
    bits = {bit for reading in held for bit in _REASONS if bit & reading.reasons}
    return GpuUse(
        index=gpu.index,
        name=gpu.name,
        power_w=over("power_w", mean),
        power_max_w=over("power_w", max),
        power_limit_w=gpu.power_limit_w,
        sm_mhz=over("sm_mhz", mean),
        sm_min_mhz=over("sm_mhz", min),
        memory_mhz=over("memory_mhz", mean),
        temperature_max_c=over("temperature_c", max),
        utilisation=over("utilisation", mean),
        memory_used_gb=None if used is None else round(used / _GB, 2),
        held_share=len(held) / len(readings),
        held_by=[_REASONS[bit] for bit in sorted(bits)],
    )


def _throttled(use: GpuUse) -> Notice | None:
    causes = [cause for cause in use.held_by if cause != POWER_CAP]
    if not causes:
        return None
    at = f", {use.temperature_max_c:g} °C" if use.temperature_max_c is not None else ""
    text = f"GPU {use.index} was slowed down: {', '.join(causes)}{at}; look after its cooling"
    return Notice(code="gpu-throttled", text=f"{text} and power")
