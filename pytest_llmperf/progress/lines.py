"""Progress without a terminal to draw on: one line as a cell's load starts, one with its result."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pytest_llmperf.model.redact import redact
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.progress.board import Board, describe, spell


class Lines:
    """Writes between pytest's own lines, as pytest's live logs do."""

    interval_s = 1.0

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._capture = reporter.config.pluginmanager.getplugin("capturemanager")
        self._started = False
        self._prefix: object = None
        """What pytest had begun its line with; its outcome letter belongs behind it."""

    def begin(self, board: Board) -> None:
        self._started = False

    def draw(self, board: Board) -> None:
        running = board.running
        if self._started or running is None or board.event is None:
            return
        again = f", {running.again}" if running.again else ""
        place = f"{board.number} of {len(board.cells)}, about {spell(board.left_s)} left"
        self._write(f"measuring {running.name}{again} ({place})")
        self._started = True

    def end(self, board: Board, measurement: Measurement | None) -> None:
        if self._started and board.running is not None and measurement is not None:
            self._write(f"{board.running.name}: {describe(measurement)}", last=True)

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, text: str, last: bool = False) -> None:
        reporter = self._reporter
        disabled = self._capture and self._capture.global_and_fixture_disabled()
        with disabled or contextlib.nullcontext():
            self._prefix = reporter.currentfspath or self._prefix
            reporter.ensure_newline()
            reporter.write(f"llmperf: {redact(text)}")
            if last and isinstance(self._prefix, Path):
                # terse output: pytest writes no more than a letter now; -v repeats its line itself
                reporter.write_fspath_result(str(self._prefix), "")
            else:
                reporter.line("")
            reporter.flush()
