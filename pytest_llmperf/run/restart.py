"""Further starts of the server of a run, which tell a slow start from a slow build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmperf.client.isolation import run_apart
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.server.reach import Reached


@dataclass(frozen=True)
class Restarted:
    """A start of the server that is ready, and what measures it: nothing is known from before."""

    number: int
    """Of the start, within the run."""
    target: Reached
    measurer: Measurer


class Restarts:
    """The starts that a run may still make. The first one was made with the run."""

    def __init__(self, target: Reached, limit: int, equip: Callable[[Reached], Measurer]) -> None:
        """
        Args:
            target: the first start.
            limit: starts beyond it, at most; none where the server is not this run's.
            equip: makes what measures a start.
        """
        self.ours = target.start_again is not None
        """Whether the run can start the server at all."""
        self.left = limit if self.ours else 0
        self._target = target
        self._equip = equip
        self._number = 1

    async def start_again(self) -> Restarted:
        """End the server, start it anew, and wait until it is ready.

        Raises:
            LlmPerfError: it did not come up again.
        """
        begin = self._target.start_again
        assert begin is not None
        self.left -= 1
        self._number = number = self._number + 1
        self._target = await run_apart(lambda: begin(number))
        return Restarted(number, self._target, self._equip(self._target))
