"""Chooses how progress is shown, and shows it while a cell runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest

from pytest_llmperf.measure.events import CellProgress
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.progress.board import Board
from pytest_llmperf.progress.lines import Lines


class View(Protocol):
    """A way to show a board. Called on the thread the tests run on."""

    interval_s: float
    """Between two calls of ``draw``."""

    def begin(self, board: Board) -> None:
        """A cell is about to be measured."""

    def draw(self, board: Board) -> None:
        """Show how far it is."""

    def end(self, board: Board, measurement: Measurement | None) -> None:
        """It was measured, or (None) broken off."""

    def close(self) -> None:
        """The run is over."""


class Show:
    """Progress of a run. Whatever goes wrong in showing it switches the showing off, no more."""

    def __init__(self, board: Board, view: View | None) -> None:
        self.board = board
        self._view = view

    def hear(self, event: CellProgress) -> None:
        """Take note of an event; called on the measuring thread, so it does nothing else."""
        self.board.event = event

    @contextlib.asynccontextmanager
    async def cell(self, cell: Cell) -> AsyncIterator[Callable[[Measurement], None]]:
        """Show a cell while the body measures it; the body hands its measurement over."""
        result: list[Measurement] = []
        self.board.begin(cell)
        self._try(lambda view: view.begin(self.board))
        ticking = asyncio.create_task(self._tick())
        try:
            yield result.append
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            found = result[0] if result else None
            self._try(lambda view: view.end(self.board, found))
            self.board.end(found)

    def close(self) -> None:
        self._try(lambda view: view.close())

    async def _tick(self) -> None:
        while self._view is not None:
            await asyncio.sleep(self._view.interval_s)
            self._try(lambda view: view.draw(self.board))

    def _try(self, action: Callable[[View], None]) -> None:
        if self._view is None:
            return
        try:
            action(self._view)
        except Exception:
            self._view = None


def choose_view(config: pytest.Config) -> View | None:
    """An area in a terminal that is ours alone, lines elsewhere, nothing when it is to be quiet.

    To be called while nothing is captured.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return None  # -q, a worker process of xdist, -p no:terminal
    if not _draws(config, reporter):
        return Lines(reporter)
    try:
        from pytest_llmperf.progress.area import Area

        return Area(reporter)
    except Exception:
        return Lines(reporter)


def _draws(config: pytest.Config, reporter: pytest.TerminalReporter) -> bool:
    # others that may write to the terminal while a test runs: prints, live logs, another reporter
    shared = (
        config.getoption("capture") == "no"
        or config.getini("log_cli")
        or config.getoption("log_cli_level", None) is not None
        or type(reporter) is not pytest.TerminalReporter
    )
    dumb = os.environ.get("TERM", "") in ("dumb", "unknown")
    return not shared and not dumb and not os.environ.get("CI") and bool(reporter.isatty)
