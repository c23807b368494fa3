"""What a run tells of itself, as a baseline stores it: its facts, settings and machine. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Any

from pydantic import ValidationError

from pytest_llmperf.baseline.changes import observe
from pytest_llmperf.baseline.schema import Baseline, BaselineSettings, Hardware, Match, Run
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.redact import redact, redact_all
from pytest_llmperf.model.result import RunResult

_HARDWARE = tuple(name for name in Hardware.model_fields if name != "profile")
_TOLD = (
    "engine_version",
    "quantization",
    "backend",
    "repository",
    "build",
    "commit",
    "driver",
    "revision",
    "launch_command",
    "note",
)
"""Facts of a run that ``--llm-run-info`` may tell."""


def name_run(old: Baseline | None, run: RunResult, reason: str | None) -> tuple[str, Run]:
    """The id of the run, from its date, and its facts; the same run keeps the id it has."""
    facts = _run_facts(run, reason)
    known = old.runs if old else {}
    first = re.sub(r"[^\w-]", "", run.date[:19]) or "run"
    for run_id in itertools.chain([first], (f"{first}-{n}" for n in itertools.count(2))):
        if run_id not in known or known[run_id].date == facts.date:
            return run_id, facts
    raise AssertionError("count does not end")


def _run_facts(run: RunResult, reason: str | None) -> Run:
    assert run.server is not None
    server = run.server
    told = redact_all(dict(run.run_info))
    notes = [told.get("note"), f"accepted: {redact(reason)}" if reason else None]
    measured = [record.measurement for record in run.cells if record.measurement]
    sources = {measurement.token_source for measurement in measured} - {None}
    facts: dict[str, Any] = {
        **{name: told[name] for name in _TOLD if told.get(name)},
        "date": run.date,
        "engine": server.engine,
        "engine_version": server.version or told.get("engine_version"),
        "quantization": server.quantization or told.get("quantization"),
        "served_model": server.model,
        "bench": f"pytest-llmperf {run.llmperf_version}",
        "token_source": ", ".join(sorted(map(str, sources))) or None,
        "max_model_len": server.max_model_len or None,
        "kv_tokens": server.kv_tokens or None,
        "simulated": run.simulated or server.simulated,
        "note": "; ".join(filter(None, notes)) or None,
        "info": {
            **{k: v for k, v in told.items() if k not in (*_TOLD, *_HARDWARE, "engine")},
            **observe(server, measured),
        },
    }
    try:
        return Run.model_validate(facts)
    except ValidationError as error:
        raise ConfigError(f"--llm-run-info: {first_problem(error)}") from None


def known_settings(run: RunResult) -> BaselineSettings:
    """The settings of a run; what it left empty is unknown."""
    told = run.settings.model_dump()
    return BaselineSettings.model_validate(
        {name: value for name, value in told.items() if value != "" or name == "extra_body"}
    )


def new_profile(run: RunResult) -> Baseline:
    """A baseline without runs and cells, for the machine and the server of a run.

    Raises:
        ConfigError: ``--llm-run-info`` says what cannot be.
    """
    assert run.server is not None
    told: dict[str, Any] = {**run.run_info, **run.hardware}
    hardware = {name: told[name] for name in _HARDWARE if told.get(name)}
    try:
        for name, read in (("gpu_count", int), ("vram_gb", float)):
            if name in hardware:
                hardware[name] = read(hardware[name])
        return Baseline(
            simulated=run.simulated or run.server.simulated,
            hardware=Hardware.model_validate({"profile": run.profile, **hardware}),
            match=Match(
                gpu=hardware.get("gpu"),
                gpu_count=hardware.get("gpu_count"),
                cpu=hardware.get("cpu"),
                model=run.server.model_root or run.server.model,
                served_model=run.server.model,
                engine=run.server.engine,
            ),
            settings=known_settings(run),
            runs={},
            cells={},
        )
    except ValidationError as error:
        raise ConfigError(f"--llm-run-info: {first_problem(error)}") from None
    except ValueError as error:
        raise ConfigError(f"--llm-run-info: gpu_count and vram_gb are numbers ({error})") from None


def first_problem(error: ValidationError) -> str:
    """The first complaint of a model, with the field it is about."""
    detail = error.errors()[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
