"""How far a run is: what was measured, what runs, what is left. Knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_llmperf.measure.events import CellProgress
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement, Status
from pytest_llmperf.report.cells import speed
from pytest_llmperf.report.numbers import number

STEPS = {
    "drain": "waiting for an idle server",
    "scout": "warming up",
    "ramp": "ramping up",
    "window": "measuring",
    "close": "closing",
}
_MARKS = {Status.INVALID: "invalid", Status.OVER_CAPACITY: "over"}


@dataclass(frozen=True)
class Running:
    """The cell that is being measured."""

    cell: Cell
    began: float
    """Monotonic seconds."""
    attempt: int
    """1, or more when a cell is measured again."""
    server: str = ""
    """Which one, where there are two."""
    start: int = 1
    """Of the server, within the run."""

    @property
    def name(self) -> str:
        """The cell, and where."""
        return f"{self.cell.id} at {self.server}" if self.server else self.cell.id

    @property
    def again(self) -> str:
        """Which attempt, if not the first one; every cell has several at two servers."""
        if self.attempt == 1 or self.server:
            return ""
        where = f", start {self.start} of the server" if self.start > 1 else ""
        return f"attempt {self.attempt}{where}"


class Board:
    """The state that is shown. ``running`` changes on the test's thread; ``event`` is replaced by
    the measuring thread, whole, so that neither waits for the other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.cells: list[Cell] = []
        self.done: dict[Cell, str] = {}
        """A cell's tok/s, or why it has none, in a word."""
        self.running: Running | None = None
        self.event: CellProgress | None = None
        self.server = ""
        """Which server is measured now, where there are two."""
        self.start = 1
        """Number of the server start that is measured now."""
        self.windows = 1
        """Measurements of each cell, at least."""
        self._estimate: Callable[[Iterable[Cell]], float] = lambda cells: 0.0
        self._clock = clock
        self._began = clock()
        self._attempts: dict[Cell, int] = {}

    def expect(self, cells: Iterable[Cell], estimate: Callable[[Iterable[Cell]], float]) -> None:
        """The run begins now.

        Args:
            cells: what will be measured, over-capacity cells left out.
            estimate: seconds that cells will take.
        """
        self.cells = list(dict.fromkeys(cells))
        self._estimate = estimate
        self._began = self._clock()

    def begin(self, cell: Cell) -> None:
        """A cell is measured from now on."""
        attempt = self._attempts[cell] = self._attempts.get(cell, 0) + 1
        self.event = None
        self.running = Running(cell, self._clock(), attempt, self.server, self.start)

    def end(self, measurement: Measurement | None) -> None:
        """It is no more; None: it was broken off."""
        running, self.running = self.running, None
        if running is None or measurement is None:
            return
        self.done[running.cell] = describe_short(measurement)
        if running.cell not in self.cells:
            if measurement.status is Status.OVER_CAPACITY:
                return
            self.cells.append(running.cell)  # a test's own, that no parametrization declared

    def in_window(self) -> bool:
        """Whether what happens now belongs to the measurement of the running cell."""
        return self.event is not None and self.event.step == "window"

    @property
    def number(self) -> int:
        """Which of the cells the running one is, from 1."""
        before = [cell for cell in self.cells if cell in self.done]
        again = self.running is not None and self.running.cell in self.done
        return max(len(before) + (0 if again else 1), 1)

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Until the last cell is measured, by the estimate."""
        left = [cell for cell in self.cells if cell not in self.done]
        seconds = self.windows * self._estimate(left)
        running = self.running
        if running is None:
            return seconds
        if running.cell in left:
            others = self.windows * self._estimate(cell for cell in left if cell != running.cell)
        else:  # measured again
            others = seconds
            windows = max(self.windows - running.attempt + 1, 1)
            seconds += windows * self._estimate([running.cell])
        return max(seconds - (self._clock() - running.began), others)


def describe_short(measurement: Measurement) -> str:
    """A cell of the small matrix."""
    value = speed(measurement)
    if measurement.status is not Status.VALID or value is None:
        return _MARKS.get(measurement.status, "—")
    return number(value, 0 if value >= 1000 else 1)


def describe(measurement: Measurement) -> str:
    """One line: a cell's numbers, or why it has none."""
    value = speed(measurement)
    if measurement.status is Status.OVER_CAPACITY:
        return f"over capacity: {measurement.reason}"
    if measurement.status is Status.INVALID:
        return f"invalid: {measurement.reason}"
    parts = [f"{number(value)} tok/s", f"TTFT {number(measurement.ttft_ms, 0)} ms"]
    if measurement.itl_ms is not None:
        parts.append(f"ITL {number(measurement.itl_ms)} ms")
    return ", ".join(parts)


def spell(seconds: float) -> str:
    """``42 s``, ``3:05 min``, ``1:20 h``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
