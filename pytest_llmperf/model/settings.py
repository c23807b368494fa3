"""What a run was asked to do: frozen, light to import, free of pytest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_llmperf.model.choices import CapacityMode, Endpoint, PromptMode, UpdateMode
from pytest_llmperf.model.grid import DEFAULT_GRID, Grid

METHOD = 1
"""Version of the measurement definitions; a change of meaning of any number raises it."""


@dataclass(frozen=True)
class Connection:
    """How to reach a server. The key never shows in a repr, a report or an error."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    """TLS: verify with the system's store, with a CA file, or (False) not at all."""
    metrics_url: str | None = None


@dataclass(frozen=True)
class Workload:
    """What a measured request asks for; part of what must agree before results compare."""

    max_tokens: int = 4096
    endpoint: Endpoint = "chat"
    prompts: PromptMode = "shared"
    temperature: float = 1.0
    top_p: float = 1.0
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Durations and limits of a cell, in seconds."""

    duration_s: float = 30.0
    settle_s: float = 2.0
    stall_s: float = 30.0
    """A stream without a token for this long, after its first one, has failed."""
    drain_s: float = 30.0
    warm_load_s: float = 5.0
    """Unmeasured load before the first decode cell of a server start; never longer than a window,
    and 0 for none."""
    first_token_s: float | None = None
    """Deadline for a first token; None scales it with the context."""


@dataclass(frozen=True)
class Settings:
    """Everything the command line, markers, profile and ini say, resolved."""

    hardware: str | None = None
    model: str | None = None
    engine: str | None = None
    grid: Grid = DEFAULT_GRID
    grid_overridden: bool = False
    """The grid came from the command line, a marker or ini rather than from the profile."""
    workload: Workload = field(default_factory=Workload)
    timing: Timing = field(default_factory=Timing)
    capacity: CapacityMode = "reserved"
    kv_tokens: int | None = None
    wait_s: float | None = None
    """Wait this long for a server that refuses connections; None: fail at once."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Overrides: metric -> fraction, or ``metric@cell`` -> fraction."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Absolute limits: key (``model.keys``) -> value in the metric's unit."""
    gate: tuple[str, ...] = ()
    """Metrics gated beyond the default ones."""
    run_info: Mapping[str, str] = field(default_factory=dict)
    baselines_dir: Path = Path("baselines")
    serve: str | None = None
    """The command that starts the server to measure."""
    against: str | None = None
    """The other server of an A/B comparison: its URL, or None where ``serve_against`` starts it."""
    serve_against: str | None = None
    runs: int = 1
    """Runs of the session, one server start each."""
    restarts: int = 2
    """Further starts of the server, at most, that confirm what looks worse."""
    update: bool = False
    update_mode: UpdateMode = "moved"
    update_reason: str | None = None
    prune: bool = False
    dry_run: bool = False
    allow_mismatch: bool = False
    allow_new: bool = False
    fail_on_improvement: bool = False
    reports: Mapping[str, Path] = field(default_factory=dict)
    """Report format -> file."""
    workers: int | None = None
    """Processes that generate the load; None: as many as it takes."""
    load: tuple[str, ...] = ()
    """Those that do so instead, on this host or others: execnet specifications."""
