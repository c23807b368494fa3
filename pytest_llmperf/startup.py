"""From options to a run that is ready to measure; whatever must be refused is refused here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_llmperf import update
from pytest_llmperf.baseline.file import Loaded, read
from pytest_llmperf.baseline.match import compare
from pytest_llmperf.baseline.profiles import find_profile, profile_path
from pytest_llmperf.capacity import fits
from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.loop import run
from pytest_llmperf.connect import Connected, connect
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.estimate import estimate_seconds
from pytest_llmperf.grid import Cell
from pytest_llmperf.lock import ServerLock
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.measure.text import text_hash
from pytest_llmperf.options import Values
from pytest_llmperf.redact import redact
from pytest_llmperf.resolve import read_connection, read_settings
from pytest_llmperf.result import Notice, RunSettings, ServerInfo
from pytest_llmperf.selection import Selection, cell_of
from pytest_llmperf.session import Run
from pytest_llmperf.settings import METHOD, Connection, Settings
from pytest_llmperf.sim.parameters import is_spec
from pytest_llmperf.sim.process import start
from pytest_llmperf.verdict import Gate

NO_URL = """no server to measure. Give one:
  --llm-url http://host:port   an OpenAI-compatible server
  --llm-url sim                the built-in simulator, no server needed"""


def start_run(selection: Selection, items: list[pytest.Item]) -> Run:
    """Check everything that was asked, reach the server, and say how long it will take.

    Raises:
        ConfigError: for anything that must be mended before a measurement makes sense.
        ServerUnusable: when the server cannot be reached or is no OpenAI server.
    """
    values = selection.values()
    url = values.get("url")
    if not url:
        raise ConfigError(NO_URL)
    say = _speaker(selection.config)
    settings = replace(read_settings(values, None), grid=selection.grid)
    profile = _load_profile(settings)
    with contextlib.ExitStack() as closers:
        connection = _reach(url, values, settings, closers)
        api = ServerApi(connection)
        connected = run(
            connect(
                api,
                model=settings.model,
                engine=settings.engine,
                wait_s=settings.wait_s,
                kv_tokens=settings.kv_tokens,
                run_info=settings.run_info,
                say=say,
            )
        )
        settings = replace(settings, connection=connection)
        cells = [cell for item in items if (cell := cell_of(item))]
        built = _build(settings, url, connection, api, connected, profile, closers.pop_all(), say)
    built.stale = [] if profile is None else _stale(selection, profile)
    _announce(built, cells, say)
    return built


def _build(
    settings: Settings,
    url: str,
    connection: Connection,
    api: ServerApi,
    connected: Connected,
    profile: Loaded | None,
    closers: contextlib.ExitStack,
    say: Callable[[str], None],
) -> Run:
    server = connected.info
    with closers:
        run_settings = _describe(settings)
        warnings: list[Notice] = []
        gate = None
        if profile is not None:
            warnings, comparable = _check_match(settings, run_settings, server, profile)
            if comparable:
                gate = Gate.build(
                    profile.baseline.hardware.profile,
                    profile.baseline.cells,
                    settings.grid if settings.grid_overridden else profile.baseline.settings.grid,
                    settings,
                    profile.baseline.tolerance,
                    ci=bool(os.environ.get("CI")),
                )
        measurer = Measurer(
            api,
            connected.engine,
            server,
            connection,
            settings.workload,
            settings.timing,
            settings.capacity,
            settings.kv_tokens,
        )
        built = Run(
            settings, url, connection, server, run_settings, measurer, gate, profile,
            closers.pop_all(), say,
        )  # fmt: skip
    built.warnings += warnings
    if settings.update:
        update.refuse(profile, built.result(finished=False))
    return built


def _load_profile(settings: Settings) -> Loaded | None:
    if settings.hardware is None:
        if settings.update:
            raise ConfigError("--update-baselines needs --hardware NAME: the profile to update")
        return None
    own = profile_path(settings.hardware, settings.baselines_dir)
    try:
        return read(find_profile(settings.hardware, settings.baselines_dir))
    except ConfigError:
        if settings.update and not own.exists():
            with contextlib.suppress(ConfigError):
                return read(find_profile(settings.hardware, settings.baselines_dir))
            return None
        raise


def _reach(
    url: str, values: Values, settings: Settings, closers: contextlib.ExitStack
) -> Connection:
    """The connection; for the simulator after starting it, else after locking the server."""
    if is_spec(url):
        handle = start(url, hardware=settings.hardware, baselines=settings.baselines_dir)
        closers.callback(handle.close)
        return read_connection(values, handle.url)
    connection = read_connection(values, url)
    closers.callback(ServerLock(connection.url).release)
    return connection


def _describe(settings: Settings) -> RunSettings:
    load, grid = settings.workload, settings.grid
    return RunSettings(
        duration_s=settings.timing.duration_s,
        max_tokens=load.max_tokens,
        method=METHOD,
        endpoint=load.endpoint,
        prompts=load.prompts,
        sampling=f"temperature={load.temperature:g} top_p={load.top_p:g}",
        extra_body=json.dumps(dict(load.extra_body), sort_keys=True) if load.extra_body else "",
        text_hash=text_hash(),
        capacity=settings.capacity,
        contexts=list(grid.contexts),
        concurrency=list(grid.concurrency),
        prefill_contexts=list(grid.prefill_contexts),
    )


def _check_match(
    settings: Settings, run_settings: RunSettings, server: ServerInfo, profile: Loaded
) -> tuple[list[Notice], bool]:
    """Notices on what could not be checked, and whether the run may be compared at all."""
    matching = compare(profile.baseline, server, run_settings, settings.run_info)
    notices = []
    if matching.mismatches:
        if not settings.allow_mismatch:
            raise ConfigError(matching.explain(profile.baseline.hardware.profile))
        facts = "; ".join(str(fact) for fact in matching.mismatches)
        notices.append(Notice(code="mismatch", text=f"{facts}; nothing is compared"))
    if matching.unverified:
        names = ", ".join(fact.field for fact in matching.unverified)
        notices.append(Notice(code="unverified", text=f"not known on both sides: {names}"))
    return notices, not matching.mismatches


def _stale(selection: Selection, profile: Loaded) -> list[str]:
    """Baseline cells that the declared grid has no more; a grid of one run's own hides none."""
    if selection.overridden:
        return []
    return [cell for cell in profile.baseline.ordered_cells() if cell not in selection.declared]


def _announce(built: Run, cells: list[Cell], say: Callable[[str], None]) -> None:
    """Say what is measured, against what, and about how long it takes."""
    settings, server = built.settings, built.server
    load = settings.workload
    fitting = [
        cell
        for cell in cells
        if fits(cell, settings.capacity, server, load.max_tokens, settings.kv_tokens, load.prompts)
        is None
    ]
    rates = {}
    if built.profile is not None:
        for cell_id, stored in built.profile.baseline.cells.items():
            if values := stored.values("prefill_tok_s"):
                rates[Cell.parse(cell_id).context] = values[-1]
    timing = settings.timing
    seconds = estimate_seconds(fitting, timing.duration_s, timing.settle_s, rates or None)
    stamp = " (simulated)" if server.simulated else ""
    version = f" {server.version}" if server.version else ""
    say(f"llmperf: {server.model} on {server.engine}{version}{stamp} at {built.connection.url}")
    against = f"against {settings.hardware}" if built.profile else "compared with nothing"
    if settings.hardware is None:
        against += " (no --hardware)"
    left_out = f", {len(cells) - len(fitting)} over capacity" if len(fitting) < len(cells) else ""
    say(f"llmperf: {len(fitting)} cells{left_out}, {against}, about {_spell(seconds)}")
    for notice in built.warnings:
        say(f"llmperf: {notice.code}: {redact(notice.text)}")


def _spell(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _speaker(config: pytest.Config) -> Callable[[str], None]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return lambda text: None

    def say(text: str) -> None:
        reporter.ensure_newline()
        reporter.write_line(text)

    return say
