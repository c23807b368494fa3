"""This host, for a server that a run has started itself."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def read_cpu(cpuinfo: Path = CPUINFO) -> str:
    """The processor, and how many cores of it this process may use: what tells two hosts apart
    that serve without a GPU."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, "") or platform.processor() or platform.machine() or "unknown processor"
    return f"{name}, {_count_cores()} cores"


def _count_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
