"""What was measured and judged, as it passes between the parts and into ``results.json``.

Every field carries its unit in its name. A value that could not be observed is None, never 0.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pytest_llmperf.model.base import Model
from pytest_llmperf.model.grid import Cell, Phase
from pytest_llmperf.model.limit import LimitCheck

SCHEMA = 1
"""Version of the results file."""


class Status(str, Enum):
    """What became of one measurement."""

    VALID = "valid"
    INVALID = "invalid"
    OVER_CAPACITY = "over_capacity"


class Outcome(str, Enum):
    """What a cell's test says in the end. The values are the words that people see."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    LIMIT = "LIMIT"
    """Beyond an absolute limit, though not worse than any baseline."""
    NEW = "NEW"
    MEASURED = "MEASURED"
    """No profile: measured and reported, nothing compared."""
    UNGATED = "UNGATED"
    UPDATED = "UPDATED"
    OVERCAP = "OVERCAP"
    CAPACITY_REGRESSION = "CAPACITY REGRESSION"
    INVALID = "INVALID"

    @property
    def failed(self) -> bool:
        return self in (
            Outcome.REGRESSED,
            Outcome.LIMIT,
            Outcome.CAPACITY_REGRESSION,
            Outcome.INVALID,
        )


TokenSource = Literal["usage", "estimated", "chunks"]
"""How output tokens were counted: continuous usage; chunks scaled by final usage; bare chunks."""


class Notice(Model):
    """A named condition that does not invalidate a cell but belongs beside its numbers."""

    code: str
    """Stable and short, e.g. ``preemptions``, ``drift``, ``identical-streams``."""
    text: str


class Capacity(Model):
    """Why a cell does not fit. None is unknown."""

    needs: int | None = None
    budget: int | None = None
    reason: str
    """For people, with both numbers: "needs 1,572,864 KV tokens, the server has 1,441,792"."""


class ServerSide(Model):
    """What the server's own gauges said over the window. None where it does not report."""

    running_mean: float | None = None
    waiting_max: float | None = None
    kv_use_max: float | None = None
    """Fraction of the KV cache, 0 to 1."""
    preemptions: int | None = None
    generated_tokens: float | None = None
    """The server's token counter over the window, at its own stamps."""
    generated_tok_s: float | None = None
    prefix_hit_rate: float | None = None


class GpuUse(Model):
    """One of the server's GPUs over the window, where it is on this host. Means unless said."""

    index: int
    name: str
    power_w: float | None = None
    power_max_w: float | None = None
    power_limit_w: float | None = None
    sm_mhz: float | None = None
    sm_min_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_max_c: float | None = None
    utilisation: float | None = None
    """Fraction of the time that a kernel ran, 0 to 1."""
    memory_used_gb: float | None = None
    """The most at once."""
    held_share: float = 0.0
    """Fraction of the readings with clocks held down for a reason."""
    held_by: list[str] = Field(default_factory=list)
    """The reasons seen: power cap, thermal slowdown, ..."""


class LoadHost(Model):
    """One host's part in the load of a cell, and how it fared."""

    name: str
    processes: int
    streams: int
    share: float | None = None
    """Of the output tokens of the whole load."""
    cpu_share: float | None = None
    """Of one core, of its busiest process over the window."""
    loop_lag_p99_ms: float | None = None
    bound: str = ""
    """Why it could not keep up."""
    clock_offset_ms: float | None = None
    """How far its monotonic clock is ahead of this host's; None for this host."""
    clock_error_ms: float | None = None
    """The offset is that sure."""


class ClientHealth(Model):
    """Whether the client could keep up; beyond its limits a cell is invalid."""

    loop_lag_p99_ms: float | None = None
    loop_lag_max_ms: float | None = None
    cpu_share: float | None = None
    """Of one core, over the window."""
    gc_pause_max_ms: float | None = None
    processing_delay_p99_ms: float | None = None
    """From the arrival of bytes to the end of their processing."""
    stamps: Literal["kernel", "program"] | None = None
    """Who stamped what arrived: the kernel when it came, or this program when it got to it."""
    merged_reads: float | None = None
    """Share of reads that brought several chunks because the client was busy when the first came:
    the stamps of all but the last are late."""
    unread_s: float | None = None
    """At the window's end bytes were unread: as many as had come in so many seconds of it."""
    clock_moved_ms: float | None = None
    """How far the wall clock, which the kernel's stamps are of, was set while the cell ran."""
    transport: str | None = None
    workers: int = 1
    hosts: list[LoadHost] = Field(default_factory=list)
    """Where the load came from, if not from this host alone."""


class Series(Model):
    """The window over time: tokens in equal bins, all streams together."""

    bin_s: float
    tokens: list[float]


class Measurement(Model):
    """One attempt at one cell.

    Values of a decode cell unless said otherwise; definitions in the method guide.
    """

    phase: Phase
    context: int
    concurrency: int = 1
    status: Status
    reason: str = ""
    """Why it is invalid or does not fit; empty when valid."""
    capacity: Capacity | None = None
    warnings: list[Notice] = Field(default_factory=list)
    started: str
    """Wall time, ISO 8601 with zone; metadata only."""
    start: int = 1
    """Number of the server start within the session that it was measured on; more than 1 where a
    breach was confirmed by another start."""
    method: int
    token_source: TokenSource | None = None
    usage_mode: Literal["continuous", "final", "none"] | None = None

    prefill_tok_s: float | None = None
    """Prefill cells: median over samples of (prompt - cached tokens) / TTFT."""
    prefill_samples: list[float] = Field(default_factory=list)

    total_tok_s: float | None = None
    total_tok_s_ci95: tuple[float, float] | None = None
    busy_tok_s: float | None = None
    """Total tok/s with restart gaps left out of the denominator."""
    per_request_tok_s: float | None = None
    ttft_ms: float | None = None
    """Median over all requests that got a token, opening burst included; prefill: over samples."""
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_n: int | None = None
    ttft_burst_ms: float | None = None
    ttft_restart_ms: float | None = None
    ttft_warm: bool | None = None
    """Decode: whether the shared prompt was seen to be cached; None where nothing says so."""
    itl_ms: float | None = None
    itl_few: bool = False
    """ITL rests on fewer than 10 arrivals or 1 s per request."""
    itl_p99_ms: float | None = None
    """99th percentile of the per-request ITL."""
    chunk_gap_p99_ms: float | None = None
    chunks_s: float | None = None
    tokens_per_chunk: float | None = None
    steps_s: float | None = None
    tokens_per_step: float | None = None
    in_flight_avg: float | None = None
    decoding_avg: float | None = None
    active_avg: float | None = None
    """Requests in the scheduler, as the server reports them; else in flight."""
    completed: int | None = None
    output_tokens: int | None = None
    measured_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    server: ServerSide = Field(default_factory=ServerSide)
    client: ClientHealth = Field(default_factory=ClientHealth)
    gpus: list[GpuUse] = Field(default_factory=list)
    """The server's GPUs; empty where they cannot be seen from here."""

    std_errors: dict[str, float] = Field(default_factory=dict)
    """Standard error of this window's estimate, by metric name, in the metric's unit.

    A metric without an entry has too few batches for one and is observed only.
    """
    series: Series | None = None
    ttfts_ms: list[float] = Field(default_factory=list)
    itls_ms: list[float] = Field(default_factory=list)
    """Per request."""

    @property
    def cell(self) -> Cell:
        return Cell(self.phase, self.context, self.concurrency)

    def value(self, metric: str) -> float | None:
        """The value of a metric of ``metrics.METRICS``, or None where it was not observed."""
        value: float | None = getattr(self, metric)
        return value


class Comparison(Model):
    """One metric of one cell against its baseline. Deltas and tolerances are fractions."""

    metric: str
    baseline: float | None
    """Median over the baseline's runs."""
    measured: float | None
    delta: float | None
    """(measured - baseline) / baseline, signed; its good direction is the metric's."""
    tolerance: float | None
    """Also the smallest change this comparison can see."""
    n: int = 0
    """Runs in the baseline."""
    weak: bool = False
    """Too few runs for a measured noise: a stated default stands in."""
    gated: bool
    verdict: Literal["ok", "worse", "better", "observed", "missing", "watched"]
    """``watched``: worse or missing, and only a warning."""
    why: str = ""
    """Why it is observed or missing, for people."""


class CellRecord(Model):
    """A cell of a run: every attempt, the one that counts, and the verdict."""

    cell: Annotated[str, AfterValidator(lambda name: Cell.parse(name).id)]
    outcome: Outcome
    failed: bool = False
    """Whether its test fails; a NEW cell fails under CI, an IMPROVED one by option."""
    message: str = ""
    measurement: Measurement | None = None
    """The attempt that was judged; of several the one in the middle, with the medians judged."""
    attempts: list[Measurement] = Field(default_factory=list)
    comparisons: list[Comparison] = Field(default_factory=list)
    limits: list[LimitCheck] = Field(default_factory=list)
    """The absolute limits that the cell has, kept and broken."""
    nodeid: str = ""
    notes: list[str] = Field(default_factory=list)


class ServerInfo(Model):
    """What a server is and can hold, as far as it says. None is unknown."""

    engine: str
    version: str | None = None
    model: str
    """The id requests use."""
    model_root: str | None = None
    models: list[str] = Field(default_factory=list)
    quantization: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    """Requests decoded at once (vLLM max_num_seqs, llama.cpp slots)."""
    kv_tokens: int | None = None
    kv_source: str = "the server does not report its KV cache"
    """Where the budget comes from and how far to trust it, for people."""
    speculative: bool | None = None
    prefix_cache: bool | None = None
    started: float | None = None
    """Start time of the server process, Unix seconds, to see a restart."""
    simulated: bool = False
    plays: str | None = None
    """The profile that a simulated server plays."""
    notes: list[str] = Field(default_factory=list)


class RunSettings(Model):
    """The settings of a run that its numbers depend on."""

    duration_s: float
    max_tokens: int
    method: int
    endpoint: str
    prompts: str
    sampling: str
    extra_body: str = ""
    text_hash: str
    capacity: str
    contexts: list[int]
    concurrency: list[int]
    prefill_contexts: list[int]


def _each_once(records: list[CellRecord]) -> list[CellRecord]:
    names = [record.cell for record in records]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"{twice} is there twice; which one counts?")
    return records


class ChangedFact(Model):
    """What differs from the newest run of the baseline, and may explain a change of its numbers."""

    field: str
    """For people: engine version, driver, KV cache, ..."""
    baseline: str
    here: str

    def __str__(self) -> str:
        return f"{self.field} {self.baseline} -> {self.here}"


DRY_RUN = "a dry run"

UNVOUCHED = "hardware"
"""Code of the notice that nothing says whether the server's hardware is the baseline's."""


class RunResult(Model):
    """``results.json``: a run, written after every cell."""

    schema_version: int = SCHEMA
    llmperf_version: str
    date: str
    finished: bool = False
    interrupted: str = ""
    """Why the run stopped early, if it did."""
    simulated: bool = False
    url: str = ""
    serve: str = ""
    """The command that started the server, where the run did; secrets redacted."""
    against: str = ""
    """The other server that every cell was compared with, pair by pair; then no baseline is."""
    options: list[str] = Field(default_factory=list)
    """Options of the command line that the numbers depend on, beside server and profile."""
    profile: str | None = None
    hardware: dict[str, str | int | float] = Field(default_factory=dict)
    run_info: dict[str, str] = Field(default_factory=dict)
    server: ServerInfo | None = None
    settings: RunSettings
    cells: Annotated[list[CellRecord], AfterValidator(_each_once)] = Field(default_factory=list)
    stale: list[str] = Field(default_factory=list)
    """Cells of the baseline that the declared grid has no more."""
    warnings: list[Notice] = Field(default_factory=list)
    changed_facts: list[ChangedFact] = Field(default_factory=list)
    """Against the newest run of the baseline."""
    findings: list[Notice] = Field(default_factory=list)
    """What fails the run though it is no cell's: ``kv-cache``."""
    matrix: str = ""
    """What got worse over all cells together, for people; empty when nothing did."""
    failed_tests: list[str] = Field(default_factory=list)
    """Tests that failed by an assertion or error of their own, not by a verdict; node ids."""
    not_updated: str = ""
    """Why ``--update-baselines`` wrote nothing of what it took: ``DRY_RUN``, or what is wrong."""
