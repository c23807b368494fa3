"""From options to a run that is ready to measure; whatever must be refused is refused here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baseline import update
from pytest_llmperf.baseline.file import Loaded, read
from pytest_llmperf.baseline.match import compare
from pytest_llmperf.baseline.profiles import find_profile, profile_path
from pytest_llmperf.config.options import Values, list_given
from pytest_llmperf.config.resolve import REPORT_DIR, read_settings
from pytest_llmperf.measure.crew import Crew
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.measure.text import text_hash
from pytest_llmperf.model.capacity import fits
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.redact import redact
from pytest_llmperf.model.result import UNVOUCHED, Notice, RunSettings, ServerInfo
from pytest_llmperf.model.settings import METHOD, Settings
from pytest_llmperf.progress.board import Board, spell
from pytest_llmperf.progress.show import Show, choose_view
from pytest_llmperf.report.numbers import count
from pytest_llmperf.run.estimate import estimate_seconds
from pytest_llmperf.run.restart import Restarts
from pytest_llmperf.run.selection import Selection, cell_of, run_of
from pytest_llmperf.run.session import Run
from pytest_llmperf.run.versus import PairedRun
from pytest_llmperf.run.workers import own_url, worker_id
from pytest_llmperf.server.reach import Reached, reach
from pytest_llmperf.server.telemetry import Telemetry, open_telemetry
from pytest_llmperf.sim import is_spec
from pytest_llmperf.verdict import Gate, Limits
from pytest_llmperf.verdict.ab import PAIRS, PairGate

NO_URL = """no server to measure. Give one:
  --llm-url http://host:port   an OpenAI-compatible server
  --llm-serve "vllm serve …"   started for the run, and stopped after it
  --llm-url sim                the built-in simulator, no server needed"""


UNVOUCHED_TEXT = (
    "nothing vouches for the hardware: the server's GPUs cannot be seen from here, or the profile "
    "names none; a baseline of another machine would look like this too. State what serves with "
    "--llm-run-info gpu=NAME"
)


def start_run(
    selection: Selection,
    items: list[pytest.Item],
    crew: Crew,
    number: int = 1,
    first: Run | None = None,
) -> Run:
    """Check everything that was asked, reach the server, and say how long it will take.

    Args:
        crew: who generates the load, in all runs of the session.
        number: of the run within the session.
        first: the first run of the session: what was its baseline is that of all.

    Raises:
        ConfigError: for anything that must be mended before a measurement makes sense.
        ServerUnusable: when the server cannot be reached or is no OpenAI server.
    """
    values = selection.values()
    settings = replace(read_settings(values), grid=selection.grid)
    say = _speaker(selection.config)
    url = own_url(selection.config, values.get("url"), settings)
    _check_servers(url, settings)
    profile = _load_profile(settings)
    settings = replace(settings, reports=_report_paths(selection.config, settings, number))
    log = REPORT_DIR / (f"server-run{number}.log" if settings.runs > 1 else "server.log")
    cells = [cell for item in items if run_of(item) == number and (cell := cell_of(item))]
    whole = profile is not None and set(profile.baseline.settings.grid) <= set(cells)
    if settings.prune and profile is not None and not whole:
        raise ConfigError(
            "--llm-prune deletes what the matrix has no more, so it needs the whole matrix of "
            f"{settings.hardware}: leave out paths, -k and options of the grid"
        )
    crew.open()
    show = Show(Board(), choose_view(selection.config))
    with contextlib.ExitStack() as closers:
        closers.callback(show.close)
        target = reach(url, settings.serve, values, settings, log, number, closers, say)
        telemetry = _see_gpus(values, target)
        machine = telemetry.facts or target.host
        facts = {**machine, **settings.run_info, **target.facts}
        settings = replace(settings, run_info=facts)
        paired = settings.against is not None or settings.serve_against is not None
        judged_by = None if paired else first.profile if first else profile
        kind = PairedRun if paired else Run
        built = _build(kind, settings, target, profile, judged_by, crew, say, show)
        if isinstance(built, PairedRun):
            other_log = log.with_name("server-against.log")
            command, address = settings.serve_against, settings.against
            other = reach(
                address, command, values, settings, other_log, number, closers, say, other=True
            )
            built.against = redact(other.url)
            reference = _build(Run, settings, other, None, None, crew, say, show)
            built.warnings += _different_models(built.server, reference.server)
            built.oppose(reference, PairGate.of(built.against, settings.grid, settings))
        built.telemetry = telemetry
        built.warnings += telemetry.look()
        built.closers = closers.pop_all()
    stored = profile.baseline.cells if profile is not None else {}
    known = {cell.id for cell in settings.grid}.union(selection.declared, stored)
    built.warnings += built.limits.find_idle(map(Cell.parse, known))
    built.options = list_given(selection.config)
    built.number = number
    built.before = first.before if first else profile.text if profile else ""
    built.stale = _stale(selection, profile) if profile is not None and whole else []
    if settings.runs > 1:
        say(f"llmperf: run {number} of {settings.runs}")
    _announce(built, cells, say, judged_by)
    return built


def _different_models(ours: ServerInfo, theirs: ServerInfo) -> list[Notice]:
    """That two servers are compared which do different work, as is meant for a quantization."""
    if {ours.model, ours.model_root} & {theirs.model, theirs.model_root} - {None}:
        return []
    text = f"the other server serves {theirs.model!r}, this one {ours.model!r}"
    return [Notice(code="mismatch", text=text)]


def _see_gpus(values: Values, target: Reached) -> Telemetry:
    if values.get("telemetry") == "off" or target.connected.info.simulated:
        return Telemetry()
    return open_telemetry(target.connection.url)


def _check_servers(url: str | None, settings: Settings) -> None:
    """Whether what is asked of the servers goes together."""
    if not url and not settings.serve:
        raise ConfigError(NO_URL)
    if settings.runs > 1 and not settings.serve and not is_spec(url or ""):
        raise ConfigError(
            "--llm-runs: a run is one server start, and this server is not started by us; give the "
            "command with --llm-serve, or start it anew and run pytest again with "
            "--llm-update-mode add"
        )
    if settings.against is None and settings.serve_against is None:
        return
    if settings.update:
        raise ConfigError("--llm-against compares two servers; it updates no baseline")
    if settings.runs > 1:
        raise ConfigError("--llm-against compares within one run; leave --llm-runs out")


def _report_paths(config: pytest.Config, settings: Settings, number: int) -> dict[str, Path]:
    """Where this run's reports go: each of several runs has its own. A worker keeps what it
    measured; the reports are made of what all of them did."""
    worker = worker_id(config)
    mark = f"-run{number}" if settings.runs > 1 else f"-{worker}" if worker else ""
    return {
        name: path.with_stem(path.stem + mark)
        for name, path in settings.reports.items()
        if worker is None or name == "json"
    }


def _build(
    kind: type[Run],
    settings: Settings,
    target: Reached,
    profile: Loaded | None,
    judged_by: Loaded | None,
    crew: Crew,
    say: Callable[[str], None],
    show: Show,
) -> Run:
    """A run of one server, compared with ``judged_by``; ``profile`` is what it may update."""
    server = target.connected.info
    run_settings = _describe(settings)
    warnings: list[Notice] = []
    gate, limits = None, Limits.build(None, settings)
    if judged_by is not None:
        warnings, comparable = _check_match(settings, run_settings, server, judged_by)
        if comparable:
            baseline = judged_by.baseline
            limits = Limits.build(baseline, settings)
            gate = Gate.build(
                baseline.hardware.profile,
                baseline.cells,
                settings.grid if settings.grid_overridden else baseline.settings.grid,
                settings,
                baseline.tolerance,
                ci=bool(os.environ.get("CI")),
                runs=baseline.runs,
                floors=baseline.floor,
                watched=limits.watched,
            )

    def equip(start: Reached) -> Measurer:
        return Measurer(
            start.api,
            start.connected.engine,
            start.connected.info,
            start.connection,
            settings.workload,
            settings.timing,
            settings.capacity,
            settings.kv_tokens,
            show.hear,
            crew,
        )

    built = kind(
        settings, target.url, target.connection, server, run_settings, equip(target), gate,
        profile, say, show,
    )  # fmt: skip
    built.restarts = Restarts(target, settings.restarts, equip)
    built.process = target.process
    built.limits = limits
    built.judged_by = judged_by.baseline if judged_by is not None and gate is not None else None
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
            return None
        raise


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
    unverified = matching.describe_unverified()
    if server.simulated:  # it has no GPU, and says what it is
        return notices, not matching.mismatches
    if unverified:
        notices.append(Notice(code="unverified", text=unverified))
    if not matching.vouched and not matching.mismatches:
        notices.append(Notice(code=UNVOUCHED, text=UNVOUCHED_TEXT))
    return notices, not matching.mismatches


def _stale(selection: Selection, profile: Loaded) -> list[str]:
    """Baseline cells that neither the profile's matrix nor a test's own declares any more."""
    declared = {*selection.declared, *(cell.id for cell in profile.baseline.settings.grid)}
    return [cell for cell in profile.baseline.ordered_cells() if cell not in declared]


def _announce(
    built: Run, cells: list[Cell], say: Callable[[str], None], judged_by: Loaded | None
) -> None:
    """Say what is measured, against what, and about how long it takes."""
    settings, server = built.settings, built.server
    load = settings.workload
    too_much = {
        cell: fits(
            cell, settings.capacity, server, load.max_tokens, settings.kv_tokens, load.prompts
        )
        for cell in cells
    }
    fitting = [cell for cell, why in too_much.items() if why is None]
    if (least := next(iter(too_much.values()), None)) and not fitting:
        text = f"no cell fits this server: {least.reason}"
        built.warnings.append(Notice(code="over-capacity", text=text))
    rates = {}
    if built.profile is not None:
        for cell_id, stored in built.profile.baseline.cells.items():
            if values := stored.values("prefill_tok_s"):
                rates[Cell.parse(cell_id).context] = values[-1]
    timing = settings.timing

    def estimate(some: Iterable[Cell]) -> float:
        return estimate_seconds(
            some, timing.duration_s, timing.settle_s, rates or None, timing.warm_load_s
        )

    built.show.board.expect(fitting, estimate)
    seconds = estimate(fitting)
    stamp = " (simulated)" if server.simulated else ""
    version = f" {server.version}" if server.version else ""
    address = redact(built.connection.url)
    say(f"llmperf: {server.model} on {server.engine}{version}{stamp} at {address}")
    against = f"against {settings.hardware}" if judged_by else "compared with nothing"
    more = ""
    if built.against:
        against = f"against {built.against}"
        seconds *= 2 * PAIRS
        more = ", twice that for cells that differ"
    elif settings.hardware is None:
        against += " (no --hardware)"
    left_out = f", {len(cells) - len(fitting)} over capacity" if len(fitting) < len(cells) else ""
    say(
        f"llmperf: {count(len(fitting), 'cell')}{left_out}, {against}, about {spell(seconds)}{more}"
    )
    for notice in (*built.findings, *built.warnings):
        say(f"llmperf: {notice.code}: {redact(notice.text)}")


def _speaker(config: pytest.Config) -> Callable[[str], None]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return lambda text: None

    capture = config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        # while a test runs, pytest captures what goes to the terminal
        disabled = capture and capture.global_and_fixture_disabled()
        with disabled or contextlib.nullcontext():
            reporter.ensure_newline()
            reporter.write_line(text, flush=True)

    return say
