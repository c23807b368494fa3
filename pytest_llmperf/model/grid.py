"""The matrix: cells, their ids, their order, and how token counts are written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]

_TOKENS = re.compile(r"([0-9]+)\s*([kKmM]?)")
_CELL = re.compile(r"(prefill|decode)\[(\w+?)(?:-c(\d+))?\]")
_UNIT = {"": 1, "k": 1024, "m": 1024 * 1024}
_LARGEST = 2**31


def parse_tokens(text: str) -> int:
    """Read a token count: ``8K``, ``128k``, ``1M`` or ``8192``; K is 1024.

    Raises:
        ValueError: when the text is not such a count.
    """
    match = _TOKENS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a token count; write 8192, 8K or 128k")
    tokens = int(match[1]) * _UNIT[match[2].lower()]
    if tokens >= _LARGEST:
        raise ValueError(f"{text!r} is more tokens than any server holds")
    return tokens


def format_tokens(tokens: int) -> str:
    """Write a token count the way reports do: ``8K`` for 8192, ``1000`` for 1000."""
    return f"{tokens // 1024}K" if tokens and tokens % 1024 == 0 else str(tokens)


@dataclass(frozen=True)
class Cell:
    """One test of the matrix: a phase at a context length (tokens) and a concurrency (streams)."""

    phase: Phase
    context: int
    concurrency: int = 1

    @property
    def param_id(self) -> str:
        """What stands between the brackets of the test id: ``8K`` or ``8K-c16``."""
        label = format_tokens(self.context)
        return label if self.phase == "prefill" else f"{label}-c{self.concurrency}"

    @property
    def id(self) -> str:
        """The key in baselines and reports: ``prefill[8K]`` or ``decode[8K-c16]``."""
        return f"{self.phase}[{self.param_id}]"

    @classmethod
    def parse(cls, cell_id: str) -> Cell:
        """Read a cell id.

        Raises:
            ValueError: when it is not one, or not in the one form that ``id`` writes.
        """
        match = _CELL.fullmatch(cell_id)
        if match is None or (match[1] == "decode") != (match[3] is not None):
            raise ValueError(f"{cell_id!r} is not a cell; write prefill[8K] or decode[8K-c16]")
        cell = cls(match[1], parse_tokens(match[2]), int(match[3] or 1))  # type: ignore[arg-type]
        if cell.id != cell_id:
            raise ValueError(f"{cell_id!r} should be written {cell.id!r}")
        return cell

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: context by context, prefill first (it warms the cache), then rising load."""
        return (self.context, 0 if self.phase == "prefill" else 1, self.concurrency)


@dataclass(frozen=True)
class Grid:
    """The declared matrix. Contexts in tokens; prefill may have contexts that decode has not."""

    contexts: tuple[int, ...]
    concurrency: tuple[int, ...]
    prefill_contexts: tuple[int, ...]

    def prefill_cells(self) -> list[Cell]:
        return [Cell("prefill", context) for context in self.prefill_contexts]

    def decode_cells(self) -> list[Cell]:
        return [Cell("decode", ctx, conc) for ctx in self.contexts for conc in self.concurrency]

    def __iter__(self) -> Iterator[Cell]:
        yield from in_order([*self.prefill_cells(), *self.decode_cells()])


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Sort cells into the order they are measured in."""
    return sorted(cells, key=lambda cell: cell.order)


_DEFAULT_CONTEXTS = tuple(1024 * k for k in (8, 16, 32, 64, 128))
DEFAULT_GRID = Grid(
    contexts=_DEFAULT_CONTEXTS,
    concurrency=tuple(2**i for i in range(8)),
    prefill_contexts=_DEFAULT_CONTEXTS,
)
