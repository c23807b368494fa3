"""A run against another server: every cell is measured at both in turn, and compared by pairs."""

from __future__ import annotations

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, Measurement
from pytest_llmperf.run.session import Run
from pytest_llmperf.verdict import MatrixVerdict, check_limits
from pytest_llmperf.verdict.ab import (
    MOST_PAIRS,
    PAIRS,
    Pair,
    PairGate,
    judge_pairs,
    needs_confirmation,
)


class PairedRun(Run):
    """The run of the tested server, which drives that of the other one."""

    reference: Run
    pair_gate: PairGate

    def oppose(self, reference: Run, gate: PairGate) -> None:
        """Name the server to compare with; before the first cell."""
        self.reference, self._gate, self.pair_gate = reference, gate, gate
        self._pairs: dict[Cell, list[Pair]] = {}
        self.show.board.windows = 2 * PAIRS

    async def measure(self, cell: Cell) -> Measurement:
        """Measure one cell at both servers, A B B A; returns what the tested one did last."""
        self._pairs[cell] = await self._measure_pairs(cell, PAIRS)
        return self._pairs[cell][-1].tested

    def judge_matrix(self) -> MatrixVerdict:
        """No verdict: of one start of each server nothing is known about the next."""
        return MatrixVerdict((), "one start of each server does not show the noise between starts")

    async def _measure_pairs(self, cell: Cell, number: int) -> list[Pair]:
        pairs = []
        for n in range(number):
            turns: list[Run] = [self.reference, self]
            found = {}
            for side in turns if n % 2 == 0 else turns[::-1]:
                self.show.board.server = side.url
                found[side] = await Run.measure(side, cell)
            pairs.append(Pair(found[self.reference], found[self]))
        self.stop_reason = self.stop_reason or self.reference.stop_reason
        return pairs

    async def _judge(self, measurement: Measurement) -> CellRecord:
        cell = measurement.cell
        pairs = self._pairs[cell]
        others = [known for other, known in self._pairs.items() if other != cell]

        def judged() -> CellRecord:
            return check_limits(judge_pairs(cell, pairs, self.pair_gate, others), self.limits)

        record = judged()
        if needs_confirmation(record, pairs):
            pairs += await self._measure_pairs(cell, MOST_PAIRS - len(pairs))
            record = judged()
        return record
