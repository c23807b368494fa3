"""A stand-in for NVML: the functions we use, with the values and units real drivers give."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """What NVML raises for anything."""


@dataclass
class FakeGpu:
    """One GPU; a value of None is not supported by it."""

    name: str = "NVIDIA H200"
    total: int = 150_754_820_096
    used: int = 132_473_946_112
    milliwatts: int | None = 412_345
    limit: int | None = 700_000
    sm: int = 1980
    memory: int = 3201
    celsius: int = 51
    percent: int = 97
    reasons: int = 0
    pids: list[int] = field(default_factory=lambda: [4711])
    read: int = 0
    """How often its power was asked for."""


class FakeNvml:
    """To be put in place of the module ``pynvml``."""

    NVMLError = NVMLError

    def __init__(
        self, *gpus: FakeGpu, driver: str | bytes = "580.65.06", old: bool = False
    ) -> None:
        self.gpus = gpus
        self._driver = driver
        if old:  # drivers before 535 know one of the two names
            self.nvmlDeviceGetCurrentClocksEventReasons = self._unsupported

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlSystemGetDriverVersion(self) -> str | bytes:  # noqa: N802
        return self._driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=gpu.total - gpu.used)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:  # noqa: N802
        gpu.read += 1
        if gpu.milliwatts is None:
            raise NVMLError("Not Supported")
        return gpu.milliwatts

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:  # noqa: N802
        if gpu.limit is None:
            raise NVMLError("Not Supported")
        return gpu.limit

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, domain: int) -> int:  # noqa: N802
        return {1: gpu.sm, 2: gpu.memory}[domain]

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:  # noqa: N802
        assert sensor == 0
        return gpu.celsius

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=gpu.percent, memory=35)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=gpu.used) for pid in gpu.pids]

    def _unsupported(self, gpu: FakeGpu) -> int:
        raise NVMLError("Function Not Found")
