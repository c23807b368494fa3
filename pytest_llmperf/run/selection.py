"""Which cells were declared and selected: collection, without a server and nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.config.options import Values
from pytest_llmperf.config.resolve import grid_overridden, read_grid, read_runs
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell, Grid

FIXTURES = {"prefill_cell": "prefill", "decode_cell": "decode"}
RUN_FIXTURE = "_llm_run"
MATRIX_FIXTURE = "llm_matrix"
MARKER_KEYS = ("contexts", "concurrency", "prefill_contexts")


class Selection:
    """The declared grid and the tests made from it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.declared: dict[str, Cell] = {}
        """Every cell that was parametrized, selected or not, by id."""
        self.overridden = False
        self.left_out = ""
        """Why the whole-matrix tests were left out, if they were."""
        self.error: ConfigError | None = None
        """Why the cells could not be made. Raised inside the collection of one file it would be
        that file's error (exit 2); after it, it is the usage error that it is (exit 4)."""
        self._profile: Mapping[str, Any] | None = None

    @property
    def profile_settings(self) -> Mapping[str, Any]:
        """The settings block of the profile of ``--hardware``, unchecked; {} without one."""
        if self._profile is None:
            self._profile = self._read_profile()
        return self._profile

    def values(self, marker: Mapping[str, Any] | None = None) -> Values:
        return Values(self.config, self.profile_settings, marker)

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test that takes ``prefill_cell`` or ``decode_cell`` its cells."""
        for fixture, phase in FIXTURES.items():
            if fixture not in metafunc.fixturenames:
                continue
            cells = self._cells(metafunc, phase)
            self.declared.update((cell.id, cell) for cell in cells)
            metafunc.parametrize(fixture, cells, ids=[cell.param_id for cell in cells])
        if RUN_FIXTURE in metafunc.fixturenames and (runs := self._runs()) > 1:
            numbers = range(1, runs + 1)
            metafunc.parametrize(
                RUN_FIXTURE, numbers, indirect=True, ids=[f"run{n}" for n in numbers]
            )

    def _runs(self) -> int:
        try:
            return read_runs(self.values())
        except ConfigError as error:
            self.error = self.error or error
            return 1

    def _cells(self, metafunc: pytest.Metafunc, phase: str) -> list[Cell]:
        try:
            values = self.values(_marker(metafunc.definition))
            grid = read_grid(values)
        except ConfigError as error:
            self.error = self.error or error
            return []
        self.overridden |= grid_overridden(values)
        return grid.prefill_cells() if phase == "prefill" else grid.decode_cells()

    @property
    def grid(self) -> Grid:
        """The declared cells as a matrix."""
        cells = self.declared.values()
        decode = [c for c in cells if c.phase == "decode"]
        return Grid(
            contexts=tuple(sorted({c.context for c in decode})),
            concurrency=tuple(sorted({c.concurrency for c in decode})),
            prefill_contexts=tuple(sorted({c.context for c in cells if c.phase == "prefill"})),
        )

    def ours(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """The items that measure: those that use the ``llm`` fixture."""
        return [item for item in items if "llm" in getattr(item, "fixturenames", ())]

    def sort(self, items: list[pytest.Item]) -> None:
        """Put our items into measuring order; everything else stays where it is."""
        _sort([item for item in items if cell_of(item)], items, _order)

    def settle(self, items: list[pytest.Item]) -> None:
        """Once it is certain what will run: run by run, and the matrix after its cells.

        A test of the whole matrix is taken out where the matrix is not whole.
        """
        _sort(self.ours(items), items, lambda item: (run_of(item), is_matrix(item)))
        matrices = [item for item in items if is_matrix(item)]
        if not matrices:
            return
        cells = {cell for item in items if (cell := cell_of(item))}
        if hasattr(self.config, "workerinput"):
            self.left_out = "a worker measures only a part of it"
        elif self.overridden:
            self.left_out = "the grid is not the profile's own"
        elif not cells or cells != set(self.declared.values()):
            self.left_out = "not all of its cells are selected"
        if self.left_out:
            items[:] = [item for item in items if not is_matrix(item)]
            self.config.hook.pytest_deselected(items=matrices)

    def _read_profile(self) -> Mapping[str, Any]:
        values = Values(self.config)
        name = values.get("hardware")
        if not name:
            return {}
        from pytest_llmperf.baseline.profiles import find_profile, profile_path, read_declared

        directory = Path(values.get("baselines-dir") or "baselines")
        if values.get("update-baselines") and not profile_path(name, directory).is_file():
            try:
                return read_declared(find_profile(name, directory))
            except ConfigError:
                return {}  # the update creates it
        return read_declared(find_profile(name, directory))


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell an item was parametrized with."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    cells = (callspec.params.get(fixture) for fixture in FIXTURES)
    return next((cell for cell in cells if isinstance(cell, Cell)), None)


def run_of(item: pytest.Item) -> int:
    """The number of the run that an item belongs to, from 1."""
    callspec = getattr(item, "callspec", None)
    return int(callspec.params.get(RUN_FIXTURE, 1)) if callspec is not None else 1


def is_matrix(item: pytest.Item) -> bool:
    """Whether an item judges all cells together."""
    return MATRIX_FIXTURE in getattr(item, "fixturenames", ())


def _sort(
    ours: list[pytest.Item], items: list[pytest.Item], key: Callable[[pytest.Item], Any]
) -> None:
    """Sort some of the items among the places that they have."""
    chosen = set(map(id, ours))
    places = [i for i, item in enumerate(items) if id(item) in chosen]
    for place, item in zip(places, sorted(ours, key=key), strict=True):
        items[place] = item


def _order(item: pytest.Item) -> tuple[int, int, int]:
    cell = cell_of(item)
    assert cell is not None
    return cell.order


def _marker(definition: pytest.Item) -> dict[str, Any]:
    marker = definition.get_closest_marker("llm")
    if marker is None:
        return {}
    unknown = set(marker.kwargs) - set(MARKER_KEYS)
    if unknown or marker.args:
        raise ConfigError(f"@pytest.mark.llm takes {', '.join(MARKER_KEYS)}, by name")
    return {key: _text(value) for key, value in marker.kwargs.items()}


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)
