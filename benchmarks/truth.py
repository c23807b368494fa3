"""The ground-truth server: built, started, and its own log read as the truth."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.load import BENCH, Load, Seen

SOURCE = Path(__file__).with_name("truth_server.c")


def build() -> Path:
    """Compile the server where that has not been done.

    Raises:
        subprocess.CalledProcessError, FileNotFoundError: there is no C compiler that can.
    """
    binary = BENCH / "truth_server"
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        BENCH.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", binary, SOURCE, "-lm"], check=True)
    return binary


@dataclass(frozen=True)
class Truth:
    """What was sent, by the server's own clock."""

    ttft_ms: float
    itl_ms: float
    itl_p99_ms: float
    tok_s: float
    late_p99_ms: float | None
    """How far behind its schedule the server sent; None for a flood."""
    late_max_ms: float | None
    chunks: int
    """Of the whole run."""
    cpu_s: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class TruthServer:
    """``with TruthServer(load) as server: ... server.url``, then ``server.truth(seen)``."""

    def __init__(self, load: Load, core: int | None = None, realtime: bool = False) -> None:
        self._load = load
        self._log = BENCH / f"truth-{os.getpid()}.log"
        self._core = core
        self._realtime = realtime

    def __enter__(self) -> TruthServer:
        load = self._load
        self._process = subprocess.Popen(
            [
                build(),
                *map(str, (load.ttft_s, load.step_s, load.per_chunk, self._log)),
                *map(str, (load.places, int(load.changing))),
            ],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=self._place,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def _place(self) -> None:
        # it stands for another machine: where clients share its core it must not wait for them
        core = {self._core} if self._core is not None else None
        place(core, 11 if self._realtime else 0, -10)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        self._process.stdout.close()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_s = usage.ru_utime + usage.ru_stime
        self._requests = _read(self._log) if self._log.exists() else []
        self._log.unlink(missing_ok=True)

    def truth(self, seen: Seen) -> Truth:
        """Over the window the client looked at (its p99 and TTFT over the whole run, as those of
        all), or over its last ``load.requests`` whole requests: what came before was to warm up."""
        load = self._load
        if seen.t0 is not None and seen.t1 is not None:
            requests = [r for r in self._requests if r.arrival < seen.t1 and r.stamps.size]
            found = _in_window(requests, load, seen.t0, seen.t1)
        else:
            requests = [r for r in self._requests if r.stamps.size == load.chunks][-load.requests :]
            found = _whole(requests, load)
        late = _lateness(requests, load) if load.step_s else None
        return Truth(
            ttft_ms=1e3 * float(np.median([r.stamps[0] - r.arrival for r in requests])),
            late_p99_ms=None if late is None else 1e3 * float(np.quantile(late, 0.99)),
            late_max_ms=None if late is None else 1e3 * float(late.max()),
            chunks=sum(r.stamps.size for r in self._requests),
            cpu_s=self._cpu_s,
            **found,
        )


SPREAD = 25
"""Chunks after which a stream is at its own place in the step: see the server."""


class Request(NamedTuple):
    """What the server's log says of one. Seconds on the monotonic clock."""

    arrival: float
    shift: float
    stamps: Any
    """Of its chunks."""


def _read(path: Path) -> list[Request]:
    numbers, requests, at = np.fromfile(path), [], 0
    while at < numbers.size:
        arrival, shift, count = numbers[at : at + 3]
        at += 3 + int(count)
        requests.append(Request(float(arrival), float(shift), numbers[at - int(count) : at]))
    return requests


def _whole(requests: list[Request], load: Load) -> dict[str, float]:
    later = load.tokens - load.per_chunk
    itls = [(r.stamps[-1] - r.stamps[0]) / later for r in requests]
    span = max(r.stamps[-1] for r in requests) - min(r.arrival for r in requests)
    return {
        "itl_ms": 1e3 * float(np.mean(itls)),
        "itl_p99_ms": _p99_ms([np.diff(r.stamps) for r in requests]),
        "tok_s": load.tokens * len(requests) / span,
    }


def _in_window(requests: list[Request], load: Load, t0: float, t1: float) -> dict[str, float]:
    inside = [r.stamps[(r.stamps >= t0) & (r.stamps < t1)] for r in requests]
    inside = [stamps for stamps in inside if stamps.size > 1]
    itls = [
        (stamps[-1] - stamps[0]) / (load.per_chunk * (stamps.size - 1))
        for stamps in inside
        if stamps.size >= 10 and stamps[-1] - stamps[0] >= 1
    ] or [(stamps[-1] - stamps[0]) / (load.per_chunk * (stamps.size - 1)) for stamps in inside]
    made = 0.0
    for _, _, stamps in requests:
        counts = load.per_chunk * np.arange(1, stamps.size + 1)
        edges = np.interp([t0, t1], stamps, counts)
        # the tokens of a first chunk are made one by one at the pace of the others
        step = (stamps[-1] - stamps[0]) / max(stamps.size - 1, 1)
        for i, edge in enumerate((t0, t1)):
            if edge <= stamps[0]:
                ahead = load.per_chunk * (stamps[0] - edge) / step if step else load.per_chunk
                edges[i] = load.per_chunk - ahead if ahead <= load.per_chunk - 1 else 0
        made += edges[1] - edges[0]
    return {
        "itl_ms": 1e3 * float(np.median(itls)),
        "itl_p99_ms": _p99_ms([np.diff(r.stamps) for r in requests]),
        "tok_s": float(made) / (t1 - t0),
    }


def _lateness(requests: list[Request], load: Load) -> Any:
    late = []
    for arrival, shift, stamps in requests:
        number = np.arange(stamps.size)
        moved = shift * np.minimum(number / SPREAD, 1)
        late.append(stamps - (arrival + load.ttft_s + load.step_s * number + moved))
    return np.concatenate(late)


def _p99_ms(gaps: list[Any]) -> float:
    return 1e3 * float(np.quantile(np.concatenate(gaps), 0.99))


def place(cores: set[int] | None, realtime: int = 0, nice: int = 0) -> None:
    """Put this process on some cores, at a real-time priority if one is given."""
    if sys.platform == "linux":
        if cores:
            os.sched_setaffinity(0, cores)
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(realtime))
    with contextlib.suppress(PermissionError):
        os.nice(nice)
