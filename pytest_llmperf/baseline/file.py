"""Baseline files: text to models and back, byte for byte when nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pytest_llmperf.baseline.profiles import read_text
from pytest_llmperf.baseline.schema import Baseline, CellBaseline
from pytest_llmperf.baseline.yamltext import END, Document, block, flow, parse
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell


@dataclass(frozen=True)
class Loaded:
    """A baseline with the text it was read from, so that an update can see a change since."""

    path: Path
    text: str
    baseline: Baseline


def read(path: Path) -> Loaded:
    """Read and check a baseline file, keeping its text.

    Raises:
        ConfigError: naming file, line and field, and what to do.
    """
    text = read_text(path)
    return Loaded(path, text, loads(text, str(path)))


def load(path: Path) -> Baseline:
    """Read and check a baseline file.

    Raises:
        ConfigError: naming file, line and field, and what to do.
    """
    return read(path).baseline


def loads(text: str, source: str) -> Baseline:
    """Read and check a baseline from its text; ``source`` names it in errors.

    Raises:
        ConfigError: naming source, line and field, and what to do.
    """
    document = parse(text, source)
    _refuse_empty(document, document.data, ())
    try:
        baseline = Baseline.model_validate(document.data)
    except ValidationError as error:
        # a name with a slip in it comes before the field that it makes missing
        errors = error.errors(include_url=False)
        raise _explain(
            document, min(errors, key=lambda e: e["type"] != "extra_forbidden")
        ) from None
    if text.rstrip() == dumps(baseline).removesuffix(END).rstrip():
        raise ConfigError(
            f"{source}: cut off, its last line should be {END.strip()!r}; restore the file from "
            "version control, or add that line if nothing is missing"
        )
    return baseline


def _refuse_empty(document: Document, data: dict[str, Any], loc: tuple[str, ...]) -> None:
    """A key without a value is how a cut off line looks; only a capacity can be unknown."""
    for key, value in data.items():
        if value is None and loc[-1:] != ("over_capacity",):
            raise document.error((*loc, key), "has no value; give one or leave the key out")
        if isinstance(value, dict):
            _refuse_empty(document, value, (*loc, key))


def _explain(document: Document, error: ErrorDetails) -> ConfigError:
    loc = error["loc"]
    problem = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        problem = "unknown field"
    elif error["type"] == "missing":
        problem = f"{loc[-1]} is missing"
    elif loc and loc[-1] in ("int", "float"):
        problem = f"must be a finite number, not {error['input']!r}"
    elif "input" in error and error["type"] != "value_error":
        problem += f", not {str(error['input'])[:80]!r}"
    return document.error(loc, problem)


def dumps(baseline: Baseline) -> str:
    """Write a baseline: fixed key order, one line a metric, cells in the order of measuring."""
    return "".join(_lines(baseline)) + END


def _lines(baseline: Baseline) -> Iterator[str]:
    data = baseline.model_dump(by_alias=True, exclude_defaults=True, mode="python")
    yield f"schema: {baseline.schema_version}\n"
    if baseline.simulated:
        yield "simulated: true\n"
    for section in ("hardware", "match", "settings", "tolerance", "limits", "gate", "floor"):
        if data.get(section):
            yield f"{section}: {flow(data[section])}\n"
    yield block({"runs": data["runs"]})
    yield "cells:\n" if baseline.cells else "cells: {}\n"
    for cell_id, cell in baseline.ordered_cells().items():
        yield from _cell_lines(cell_id, cell)


def _cell_lines(cell_id: str, cell: CellBaseline) -> Iterator[str]:
    fields: dict[str, Any] = {"runs": cell.runs}
    if cell.levels:
        fields["levels"] = cell.levels
    fields.update(cell.lists())
    if cell.over_capacity is not None:
        fields["over_capacity"] = cell.over_capacity.model_dump()
    if cell.over_capacity is not None or Cell.parse(cell_id).phase == "prefill":
        yield f"  {cell_id}: {flow(fields)}\n"
        return
    yield f"  {cell_id}:\n"
    for name, values in fields.items():
        yield f"    {name}: {flow(values)}\n"
