"""Progress drawn below pytest's current line, and gone before pytest goes on with that line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

import pytest
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from pytest_llmperf.measure.events import CellProgress
from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.result import Measurement
from pytest_llmperf.progress.board import STEPS, Board, Running, spell
from pytest_llmperf.report.numbers import number

_BAR = 24
_STATUS_LINES = 3
_RUNNING, _OPEN = "...", "."


class Area:
    """A few lines of a terminal, redrawn a few times a second.

    It has a descriptor of its own for the terminal: capture, which redirects descriptor 1 while a
    test runs, neither sees it nor is in its way.
    """

    interval_s = 0.3

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        """To be made while nothing is captured."""
        writer = reporter._tw
        self._writer = writer
        # a terminal is written by lines; the area wants one write per frame
        self._file: TextIO = os.fdopen(
            os.dup(writer._file.fileno()),
            "w",
            encoding=getattr(writer._file, "encoding", None) or "utf-8",
            errors="replace",
        )
        self._console = Console(
            file=self._file,
            force_terminal=True,
            no_color=not writer.hasmarkup,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._live: Live | None = None
        self._matrix: RenderableType = ""
        self._column = 0

    def begin(self, board: Board) -> None:
        """Nothing yet: a cell over capacity is not worth an area."""

    def draw(self, board: Board) -> None:
        running, event = board.running, board.event
        if running is None or event is None:
            return
        if self._live is None:
            self._open(board)
        assert self._live is not None
        self._live.update(
            Group(*_status(board, running, event), self._matrix),
            refresh=True,
        )

    def end(self, board: Board, measurement: Measurement | None) -> None:
        """Erase the area and stand where pytest left off."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            self._console.control(Control.move(0, -1), Control.move_to_column(self._column))
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _open(self, board: Board) -> None:
        console = self._console
        self._writer.flush()
        self._column = self._writer.width_of_current_line % max(console.width, 1)
        rows = console.height - _STATUS_LINES - 3
        self._matrix = ""
        if rows > 0:
            # rendered once a cell: it stays as it is while the cell runs
            options = console.options.update(width=console.width - 1)
            self._matrix = Segments(list(_lines(console, _matrix(board, rows), options)))
        console.line()
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()


def _lines(console: Console, table: Table, options: ConsoleOptions) -> Iterator[Segment]:
    for line in console.render_lines(table, options, pad=False):
        yield from line
        yield Segment.line()


def _status(board: Board, running: Running, event: CellProgress) -> Iterator[RenderableType]:
    again = f" ({running.again})" if running.again else ""
    first = Table.grid(padding=(0, 1))
    title = Text.assemble((running.name, "bold"), f" {STEPS[event.step]}{again}")
    title.no_wrap = True
    left = event.left_s
    timing = f"{event.elapsed_s:.0f} s" if event.elapsed_s else ""
    if left is not None and event.step == "window":
        bar = ProgressBar(event.elapsed_s + left, event.elapsed_s, width=_BAR)
        first.add_row(title, bar, f"{timing}, {left:.0f} s left")
    else:
        first.add_row(title, timing)
    yield first
    parts = []
    if event.tok_s is not None:
        parts.append(f"{number(event.tok_s)} tok/s")
    if event.active is not None:
        parts.append(f"{event.active}/{event.requested} active")
    if event.waiting is not None:
        parts.append(f"{event.waiting} waiting")
    if event.tokens:
        parts.append(f"{event.tokens:,} tokens")
    yield Text("   ".join(parts) or " ", no_wrap=True, overflow="ellipsis")
    run = f"cell {board.number} of {len(board.cells)}, {spell(board.elapsed_s)}"
    yield Text(
        f"{run}, about {spell(board.left_s)} left", no_wrap=True, overflow="ellipsis", style="dim"
    )


def _matrix(board: Board, rows: int) -> Table:
    """Contexts down, prefill and concurrency across; as many contexts around the running one as
    there is room for."""
    cells = [*board.cells, *(cell for cell in board.done if cell not in board.cells)]
    assert board.running is not None
    here = board.running.cell
    contexts = sorted({cell.context for cell in [*cells, here]})
    streams = sorted({cell.concurrency for cell in [*cells, here] if cell.phase == "decode"})
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    table.add_column("tok/s", style="dim", no_wrap=True)
    for label in ("prefill", *(f"c{n}" for n in streams)):
        table.add_column(label, justify="right", no_wrap=True)
    first = max(0, min(contexts.index(here.context) - rows // 2, len(contexts) - rows))
    for context in contexts[first : first + rows]:
        row = [Cell("prefill", context), *(Cell("decode", context, n) for n in streams)]
        known = set(cells)
        table.add_row(
            format_tokens(context),
            *(_entry(board, cell) if cell in known or cell == here else "" for cell in row),
        )
    return table


def _entry(board: Board, cell: Cell) -> Text:
    if board.running is not None and cell == board.running.cell:
        return Text(_RUNNING, "bold reverse")
    return Text(board.done[cell]) if cell in board.done else Text(_OPEN, "dim")
