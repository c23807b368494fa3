"""The state behind the progress, and that showing it cannot hurt a measurement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from pytest_llmperf.measure.events import CellProgress
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Capacity, Measurement, Status
from pytest_llmperf.progress.board import Board, describe, spell
from pytest_llmperf.progress.show import Show

CELLS = [Cell("decode", 8192, n) for n in (1, 2, 4)]


def measured(cell: Cell, **values: object) -> Measurement:
    fields: dict[str, object] = {"status": Status.VALID, "total_tok_s": 769.04, **values}
    return Measurement.model_validate(
        {
            "phase": cell.phase,
            "context": cell.context,
            "concurrency": cell.concurrency,
            "started": "2026-01-01T00:00:00+00:00",
            "method": 1,
            **fields,
        }
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Board:
    def estimate(cells: Iterable[Cell]) -> float:
        return 30.0 * len(list(cells))

    board = Board(clock)
    board.expect(CELLS, estimate)
    return board


def test_time_left_counts_down_inside_a_cell_and_waits_when_it_takes_longer(
    board: Board, clock: Clock
) -> None:
    """The cells to come are never eaten into."""
    assert board.left_s == 90
    board.begin(CELLS[0])
    clock.now += 12
    assert (board.left_s, board.elapsed_s) == (78, 12)
    clock.now += 100
    assert board.left_s == 60
    board.end(measured(CELLS[0]))
    assert board.left_s == 60


def test_an_attempt_more_has_its_time_too(board: Board, clock: Clock) -> None:
    """A confirmation takes as long as the cell did; it is not said to be over at once."""
    board.begin(CELLS[0])
    board.end(measured(CELLS[0]))
    board.begin(CELLS[0])
    clock.now += 12
    assert board.left_s == 60 + 18
    clock.now += 100
    assert board.left_s == 60


def test_two_servers_take_the_time_of_all_their_windows(board: Board, clock: Clock) -> None:
    """And the cell is named with the server, not with an attempt: every cell has several."""
    board.windows = 4
    assert board.left_s == 360
    for server, left in (("http://a", 360), ("http://b", 330), ("http://b", 300)):
        board.server = server
        board.begin(CELLS[0])
        assert board.running is not None
        assert (board.running.name, board.running.again) == (f"decode[8K-c1] at {server}", "")
        assert board.left_s == left
        clock.now += 12
        assert board.left_s == left - 12
        board.end(measured(CELLS[0]))


def test_a_cell_measured_again_keeps_its_number(board: Board) -> None:
    """Two attempts are one cell of three."""
    for attempt in (1, 2):
        board.begin(CELLS[0])
        assert (board.number, board.running and board.running.attempt) == (1, attempt)
        board.end(measured(CELLS[0]))
    board.begin(CELLS[1])
    assert board.number == 2


def test_a_cell_that_no_grid_declared_joins_the_others(board: Board) -> None:
    """A test of the user's own may measure what it likes; over capacity it counts for nothing."""
    mine = Cell("decode", 1000, 3)
    board.begin(mine)
    board.end(measured(mine))
    assert mine in board.cells
    over = Cell("decode", 1000, 99)
    board.begin(over)
    board.end(measured(over, status=Status.OVER_CAPACITY, capacity=Capacity(reason="too big")))
    assert over not in board.cells
    assert board.done == {mine: "769.0", over: "over"}


def test_a_cell_broken_off_is_not_done(board: Board) -> None:
    board.begin(CELLS[0])
    board.end(None)
    assert board.running is None
    assert not board.done


def test_a_result_is_one_line() -> None:
    cell = CELLS[0]
    assert describe(measured(cell, ttft_ms=442.3, itl_ms=6.31)) == (
        "769.0 tok/s, TTFT 442 ms, ITL 6.3 ms"
    )
    assert describe(measured(cell, status=Status.INVALID, reason="gone")) == "invalid: gone"
    assert [spell(s) for s in (42.4, 185, 4800)] == ["42 s", "3:05 min", "80:00 min"]
    assert spell(7300) == "2:01 h"


class Broken:
    """A view whose terminal is gone."""

    interval_s = 0.01

    def __init__(self, at: str) -> None:
        self.at = at
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise OSError("no terminal any more")

    def begin(self, board: Board) -> None:
        self._call("begin")

    def draw(self, board: Board) -> None:
        self._call("draw")

    def end(self, board: Board, measurement: Measurement | None) -> None:
        self._call("end")

    def close(self) -> None:
        self._call("close")


@pytest.mark.parametrize("at", ["begin", "draw", "end"])
def test_an_error_in_showing_switches_it_off_and_nothing_else(board: Board, at: str) -> None:
    """The measurement is handed over, the next cell runs, the broken view is left alone."""
    view = Broken(at)
    show = Show(board, view)

    async def measure_two() -> None:
        for cell in CELLS[:2]:
            async with show.cell(cell) as done:
                show.hear(CellProgress(cell, "window", 0.0))
                await asyncio.sleep(0.05)
                done(measured(cell))

    asyncio.run(measure_two())
    show.close()
    assert set(board.done) == set(CELLS[:2])
    assert view.calls[-1] == at
    assert view.calls.count(at) == 1


def test_nothing_is_drawn_after_a_cell_ended_or_broke_off(board: Board) -> None:
    """pytest's own output comes next."""
    view = Broken("never")
    show = Show(board, view)

    async def break_off() -> None:
        async with show.cell(CELLS[0]):
            await asyncio.sleep(0.05)
            raise RuntimeError("the measurement broke off")

    async def measure() -> None:
        with pytest.raises(RuntimeError):
            await break_off()
        await asyncio.sleep(0.05)

    asyncio.run(measure())
    assert view.calls[-1] == "end"
    assert "draw" in view.calls
