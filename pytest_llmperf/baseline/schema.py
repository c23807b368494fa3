"""The models of ``baselines/<profile>.yaml``. Field order here is key order in the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from pytest_llmperf.baseline.yamltext import SCHEMA
from pytest_llmperf.model.base import Model
from pytest_llmperf.model.grid import Cell, Grid, format_tokens, in_order, parse_tokens
from pytest_llmperf.model.keys import check_key
from pytest_llmperf.model.metrics import METRICS

KEEP_RUNS = 10
"""Runs kept in a cell: those that speak for its level, then the newest."""

LEVEL_RUNS = 5
"""The first runs of a level speak for it, so that none that is added later can shift it; of the
noise all speak."""

ENOUGH_RUNS = 3
"""Runs from which the noise between them is measured rather than assumed."""

DIGITS = 6
"""Significant digits of a stored measurement."""


def round_figure(value: Any) -> Any:
    """Round a number to six significant digits; a whole number without decimals left is an int."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return value
    if abs(value) == float("inf") or (isinstance(value, int) and abs(value) < 10**DIGITS):
        return value
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if isinstance(value, int) or abs(rounded) >= 10 ** (DIGITS - 1) else rounded


def _read_tokens(value: Any) -> Any:
    return parse_tokens(value) if isinstance(value, str) else value


def _write_tokens(value: int) -> int | str:
    label = format_tokens(value)
    return label if label.endswith("K") else value


def _check_cell(cell_id: str) -> str:
    return Cell.parse(cell_id).id


def _check_tolerance(key: str) -> str:
    metric, _, cell_id = key.partition("@")
    if metric not in METRICS:
        raise ValueError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    if cell_id:
        Cell.parse(cell_id)
    return key


def _check_watch(key: str) -> str:
    return check_key(key, any_metric=True)


def _check_metric(name: str) -> str:
    return check_key(name.replace("@", " "))


CellId = Annotated[str, AfterValidator(_check_cell)]
ToleranceKey = Annotated[str, AfterValidator(_check_tolerance)]
LimitKey = Annotated[str, AfterValidator(check_key)]
WatchKey = Annotated[str, AfterValidator(_check_watch)]
MetricName = Annotated[str, AfterValidator(_check_metric)]
RunId = Annotated[str, Field(pattern=r"^\w[\w.+-]*$", max_length=64)]
InfoKey = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[int | float, Field(gt=0), BeforeValidator(round_figure)]
NotNegative = Annotated[int | float, Field(ge=0), BeforeValidator(round_figure)]
Tokens = Annotated[int, Field(ge=0), BeforeValidator(_read_tokens), PlainSerializer(_write_tokens)]
"""Tokens of context; in the file ``8K`` or 1000, in memory an int."""

PositiveRuns = list[Positive | None]
NotNegativeRuns = list[NotNegative | None]


class Strict(Model):
    """As ``result.Model``, and a number is never read from a string."""

    model_config = ConfigDict(strict=True, populate_by_name=True)


class Hardware(Strict):
    """The machine, for people. What is unknown is absent."""

    profile: Text
    type: Text | None = None
    gpu: Text | None = None
    gpu_count: Count | None = None
    vram_gb: Positive | None = None
    """All GPUs together."""
    cpu: Text | None = None
    """Where the server has no GPU that can be seen: the processor and its cores."""
    os: Text | None = None


class Match(Strict):
    """What a server must agree with before it is compared; absent: nothing to agree with."""

    gpu: Text | None = None
    gpu_count: Count | None = None
    cpu: Text | None = None
    model: Text | None = None
    """The model's root, e.g. its repository id."""
    served_model: Text | None = None
    engine: Text | None = None


class BaselineSettings(Strict):
    """Settings the numbers depend on; absent: not known, so it cannot be checked."""

    duration_s: Positive | None = None
    max_tokens: Count | None = None
    method: Count | None = None
    endpoint: Text | None = None
    prompts: Text | None = None
    sampling: Text | None = None
    extra_body: str | None = None
    text_hash: Text | None = None
    capacity: Text | None = None
    contexts: list[Tokens]
    concurrency: list[Count]
    prefill_contexts: list[Tokens]

    @property
    def grid(self) -> Grid:
        """The declared matrix."""
        return Grid(tuple(self.contexts), tuple(self.concurrency), tuple(self.prefill_contexts))


class Run(Strict):
    """Facts of one session, at best of one server start. What is unknown is absent."""

    date: Text | None = None
    """ISO 8601."""
    engine: Text | None = None
    engine_version: Text | None = None
    quantization: Text | None = None
    backend: Text | None = None
    repository: Text | None = None
    build: Text | None = None
    commit: Text | None = None
    driver: Text | None = None
    served_model: Text | None = None
    revision: Text | None = None
    bench: Text | None = None
    """The tool that measured, with its version."""
    decode_test: Text | None = None
    prefill_mode: Text | None = None
    token_source: Text | None = None
    """How output tokens were counted, ``Measurement.token_source``."""
    max_model_len: Count | None = None
    kv_tokens: Count | None = None
    simulated: bool = False
    launch_command: Text | None = None
    """Secrets redacted."""
    note: Text | None = None
    info: dict[InfoKey, str] = Field(default_factory=dict)
    """What ``--llm-run-info`` told beyond the fields above."""


class OverCapacity(Strict):
    """A cell that did not fit, in KV tokens; None is unknown."""

    needs: Count | None = None
    budget: Count | None = None


class CellBaseline(Strict):
    """One cell: its runs, and per metric one value a run, None where that run lacks it.

    Metric names are fields of ``Measurement`` (``model.result``).
    """

    runs: list[RunId] = Field(min_length=1)
    levels: list[RunId] = Field(default_factory=list)
    """Runs whose values were accepted as a new level; those before tell of the noise only."""
    over_capacity: OverCapacity | None = None
    prefill_tok_s: PositiveRuns | None = None
    total_tok_s: PositiveRuns | None = None
    per_request_tok_s: PositiveRuns | None = None
    ttft_ms: PositiveRuns | None = None
    ttft_p99_ms: PositiveRuns | None = None
    itl_ms: PositiveRuns | None = None
    chunk_gap_p99_ms: NotNegativeRuns | None = None
    steps_s: PositiveRuns | None = None
    tokens_per_step: PositiveRuns | None = None
    active_avg: NotNegativeRuns | None = None
    completed: NotNegativeRuns | None = None
    output_tokens: PositiveRuns | None = None
    measured_s: PositiveRuns | None = None

    @model_validator(mode="after")
    def _agree(self) -> CellBaseline:
        if len(set(self.runs)) != len(self.runs):
            raise ValueError("a run is named twice in runs")
        if unknown := [run for run in self.levels if run not in self.runs]:
            raise ValueError(f"levels names {unknown[0]!r}, which is not in runs")
        if self.levels != [run for run in self.runs if run in self.levels]:
            raise ValueError("levels must name runs once each, in the order of runs")
        lists = dict(self.lists())
        if (self.over_capacity is None) == (not lists):
            raise ValueError("a cell has either metrics or over_capacity")
        for name, values in lists.items():
            if len(values) != len(self.runs):
                raise ValueError(
                    f"{name} has {len(values)} values for {len(self.runs)} runs; "
                    "write null where a run lacks one"
                )
        return self

    def lists(self) -> Iterator[tuple[str, list[int | float | None]]]:
        """Each metric present, with one value a run, in file order."""
        for name in STORED:
            values = getattr(self, name)
            if values is not None:
                yield name, values

    @property
    def level_runs(self) -> list[str]:
        """The runs of the newest level, oldest first."""
        return self.runs[self.runs.index(self.levels[-1]) if self.levels else 0 :]

    def values(self, metric: str) -> list[float]:
        """The values of a metric that speak for the level, oldest first."""
        newest = len(self.levels)
        return [value for _, value, level in self.history(metric) if level == newest][:LEVEL_RUNS]

    def history(self, metric: str) -> list[tuple[str, float, int]]:
        """Run, value and number of its level for every run that has the metric, oldest first."""
        level, found = 0, []
        for run, value in zip(self.runs, getattr(self, metric, None) or (), strict=False):
            level += run in self.levels
            if value is not None:
                found.append((run, float(value), level))
        return found

    def figures(self, run: str) -> dict[str, int | float]:
        """The metrics that a run has, by name; empty when the run is not there."""
        if run not in self.runs:
            return {}
        i = self.runs.index(run)
        return {name: v for name, values in self.lists() if (v := values[i]) is not None}


STORED: tuple[str, ...] = tuple(
    name for name in CellBaseline.model_fields if name not in ("runs", "levels", "over_capacity")
)
"""Fields of ``Measurement`` that a baseline holds, in file order."""


def _wrong_phase(cell: Cell, metric: str) -> bool:
    return metric in METRICS and cell.phase not in METRICS[metric].phases


class Baseline(Strict):
    """A hardware profile: what was measured there, and what must agree to compare with it."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    simulated: bool = False
    """Made with the simulator; only such a profile takes simulated measurements."""
    hardware: Hardware
    match: Match = Field(default_factory=Match)
    settings: BaselineSettings
    tolerance: dict[ToleranceKey, Annotated[int | float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict
    )
    """Overrides: ``metric`` or ``metric@cell`` -> fraction."""
    limits: dict[LimitKey, Annotated[int | float, Field(gt=0)]] = Field(default_factory=dict)
    """Absolute: key (``model.keys``) -> the most or the least, in the metric's unit."""
    gate: dict[WatchKey, Literal["watch"]] = Field(default_factory=dict)
    """What is reported when it is worse, and fails nothing."""
    floor: dict[MetricName, Annotated[int | float, Field(ge=0)]] = Field(default_factory=dict)
    """Smallest change that counts, in the metric's unit, in place of ``Metric.floor_abs``."""
    runs: dict[RunId, Run]
    cells: dict[CellId, CellBaseline]

    @model_validator(mode="after")
    def _agree(self) -> Baseline:
        for cell_id, cell in self.cells.items():
            parsed = Cell.parse(cell_id)
            if unknown := [run for run in cell.runs if run not in self.runs]:
                raise ValueError(f"cells.{cell_id}: run {unknown[0]!r} is not listed under runs")
            if wrong := [name for name, _ in cell.lists() if _wrong_phase(parsed, name)]:
                raise ValueError(f"cells.{cell_id}: a {parsed.phase} cell has no {wrong[0]}")
        return self

    def ordered_cells(self) -> dict[str, CellBaseline]:
        """The cells in the order they are measured in, which is their order in the file."""
        return {c.id: self.cells[c.id] for c in in_order(Cell.parse(key) for key in self.cells)}
