"""A pytest plugin that sends a signal the moment a run reaches a step, as a bad day would.

``LLMPERF_SABOTAGE="STEP PID SIGNAL"``: STEP is ``start`` (of the
simulator), ``connect``, a step of ``measure.events`` after the
phase (``decode:window``), or ``finish``; PID 0 is pytest itself.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

DELAY_S = 0.05


def pytest_configure() -> None:
    step, pid, number = os.environ["LLMPERF_SABOTAGE"].split()
    strike = Strike(int(pid) or os.getpid(), int(number))
    if step == "start":
        _before("pytest_llmperf.server.starter", "start_sim", lambda *_: strike(0.2))
    elif step == "connect":
        _before("pytest_llmperf.server.reach", "connect", lambda *_: strike())
    elif step == "finish":
        _before("pytest_llmperf.run.session", "Run.finish", lambda *_: strike(0))
    else:
        phase, step = step.split(":")
        for module, cell in (("decode", "DecodeCell"), ("prefill", "PrefillCell")):
            if module == phase:
                _before(
                    f"pytest_llmperf.measure.{module}",
                    f"{cell}._report",
                    lambda _, at, *__: strike() if at == step else None,
                )


class Strike:
    """Sends the signal once, a moment later, from outside the event loop."""

    def __init__(self, pid: int, number: int) -> None:
        self._pid = pid
        self._number = number
        self._done = False

    def __call__(self, delay_s: float = DELAY_S) -> None:
        if not self._done:
            self._done = True
            threading.Timer(delay_s, os.kill, (self._pid, self._number)).start()


def _before(module: str, name: str, act: Any) -> None:
    """Call ``act`` with the arguments of a function whenever it is called."""
    target = pytest.importorskip(module)
    *path, last = name.split(".")
    for part in path:
        target = getattr(target, part)
    real = getattr(target, last)

    def wrapped(*args: Any, **named: Any) -> Any:
        act(*args)
        return real(*args, **named)

    setattr(target, last, wrapped)
