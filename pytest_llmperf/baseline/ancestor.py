"""Result files of llm-inference-bench (``llm_decode_bench.py``) to baselines. Pure.

Its numbers mean what ours mean: total tok/s is output tokens in the window over its seconds, TTFT
and time between tokens are medians over requests, prefill is prompt tokens over TTFT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_llmperf.baseline.facts import first_problem
from pytest_llmperf.baseline.schema import (
    Baseline,
    BaselineSettings,
    CellBaseline,
    Hardware,
    Match,
    OverCapacity,
    Run,
)
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.settings import METHOD

TOOL = "llm-inference-bench"
LENGTH_SHARE = 0.01
"""A prompt further off its label than this is worth a word: its prefill speed is another one's."""

_SOURCES = {"openai_continuous_usage": "usage", "openai_stream_chunks_fallback": "chunks"}
_LOOPBACK = re.compile(r"(?:https?://)?(?:localhost|127(?:\.\d+){3}|\[::1\])(?:[:/]|$)")


@dataclass(frozen=True)
class Imported:
    """The baseline, and what of the file is not in it, for people."""

    baseline: Baseline
    left_out: tuple[str, ...]


class _Part(BaseModel):
    """Of a result file only what is read is checked: other versions have other fields."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class _Metadata(_Part):
    version: str
    engine: str
    model: str
    server: str = ""
    timestamp: str
    decode_mode: str = "duration"
    duration_per_test: float
    max_tokens: int
    max_total_tokens: int = 0
    """KV budget; 0 is unknown."""
    prefill_mode: str = ""
    concurrency_levels: list[int]
    context_lengths: list[int]


class _Hardware(_Part):
    gpu_count: int = 0
    vram_total_mb: float = 0.0
    """All GPUs together."""


class _Prefill(_Part):
    ttft_seconds: float
    tok_per_sec: float
    prompt_tokens: int = 0
    hardware_summary: _Hardware = _Hardware()


class _Decode(_Part):
    concurrency: int
    context_tokens: int
    benchmark_mode: str = "duration"
    aggregate_source: str = ""
    aggregate_tps: float
    output_tps_per_user_p50: float = 0.0
    ttft_p50: float = 0.0
    ttft_p99: float = 0.0
    inter_token_latency_p50: float = 0.0
    measurement_seconds: float = 0.0
    client_output_tokens: int = 0
    num_errors: int = 0
    avg_running_reqs: float = 0.0
    capacity_limited: bool = False
    underfilled: bool = False
    warmup_timed_out: bool = False
    server_spec_accept_length: float = 0.0
    hardware_summary: _Hardware = _Hardware()

    @property
    def cell(self) -> Cell:
        return Cell("decode", self.context_tokens, self.concurrency)

    def problem(self) -> str:
        """Why this is no measurement of its cell; empty when it is one."""
        if self.benchmark_mode != "duration":
            return "a number of requests was measured there, not a duration"
        if self.num_errors:
            return f"{self.num_errors} of its requests failed"
        if self.capacity_limited or self.underfilled or self.warmup_timed_out:
            return f"the server ran {self.avg_running_reqs:g} of {self.concurrency} requests"
        if self.aggregate_tps <= 0:
            return "it has no speed"
        if self.aggregate_source not in _SOURCES:
            return f"its tokens were counted by {self.aggregate_source or 'nothing'}"
        return ""

    def figures(self) -> dict[str, float]:
        """By our names; the tool writes 0 for what it does not know."""
        figures = {
            "total_tok_s": self.aggregate_tps,
            "per_request_tok_s": self.output_tps_per_user_p50,
            "ttft_ms": self.ttft_p50 * 1e3,
            "ttft_p99_ms": self.ttft_p99 * 1e3,
            "itl_ms": self.inter_token_latency_p50 * 1e3,
            "active_avg": self.avg_running_reqs,
            "output_tokens": self.client_output_tokens,
            "measured_s": self.measurement_seconds,
        }
        return {name: value for name, value in figures.items() if value > 0}


class _File(_Part):
    metadata: _Metadata
    prefill: dict[int, _Prefill] = Field(default_factory=dict)
    results: list[_Decode]


def read_results(text: str, source: str, profile: str) -> Imported:
    """Turn a result file into the baseline of ``profile``.

    Args:
        source: names the file in errors.

    Raises:
        ConfigError: it is no such file, or holds nothing that can be compared with.
    """
    file = _parse(text, source)
    run_id = re.sub(r"[^\w-]", "", file.metadata.timestamp[:19]) or "run"
    cells: dict[str, CellBaseline] = {}
    left_out = list(_unmapped(file))
    try:
        for cell, figures, problem in [*_prefills(file), *_decodes(file)]:
            if problem:
                left_out.append(f"{cell.id}: {problem}")
            elif cell.id in cells:
                left_out.append(f"{cell.id}: is there twice; the first is taken")
            else:
                cells[cell.id] = CellBaseline.model_validate({"runs": [run_id], **figures})
        if not cells:
            why = "\n".join(f"  {line}" for line in left_out)
            raise ConfigError(f"{source}: holds no cell that can be compared with\n{why}")
        return Imported(_baseline(file, profile, run_id, cells), tuple(left_out))
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error)}") from None


def _parse(text: str, source: str) -> _File:
    hint = f"is this a result file of {TOOL} (llm_decode_bench.py --output)?"
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON ({error}); {hint}") from None
    metadata = data.get("metadata") if isinstance(data, dict) else None
    if isinstance(metadata, dict) and "mode" in metadata:
        raise ConfigError(
            f"{source}: {TOOL} ran in its mode {metadata['mode']!r}, which measures no matrix; "
            "run it without"
        )
    try:
        return _File.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error)}; {hint}") from None


Found = tuple[Cell, dict[str, Any], str]
"""A cell, its entry in the baseline, and why it has none."""


def _prefills(file: _File) -> Iterator[Found]:
    for context, found in sorted(file.prefill.items()):
        values = {"prefill_tok_s": found.tok_per_sec, "ttft_ms": found.ttft_seconds * 1e3}
        figures = {name: [value] for name, value in values.items() if value > 0}
        yield Cell("prefill", context), figures, "" if found.tok_per_sec > 0 else "it has no speed"


def _decodes(file: _File) -> Iterator[Found]:
    """What was measured; then the cells of its matrix that are not there, most for capacity."""
    for found in file.results:
        figures = {name: [value] for name, value in found.figures().items()}
        yield found.cell, figures, found.problem()
    measured = {found.cell for found in file.results}
    told = file.metadata
    budget = told.max_total_tokens
    for context in told.context_lengths if measured else ():
        for streams in told.concurrency_levels:
            cell = Cell("decode", context, streams)
            needs = streams * (context + told.max_tokens)
            over = {"over_capacity": OverCapacity(needs=needs, budget=budget or None)}
            if cell not in measured:
                yield cell, over, "" if 0 < budget < needs else "it was not measured"


def _unmapped(file: _File) -> Iterator[str]:
    """What is lost on the way, apart from cells."""
    yield "GPU model, engine version, sampling, launch command: the file does not tell them"
    yield "completed requests, gaps between chunks: counted differently there"
    if any(found.server_spec_accept_length > 0 for found in file.results):
        yield "accepted tokens per step: a last reading there, not one over the window"
    for context, found in sorted(file.prefill.items()):
        if context and abs(found.prompt_tokens / context - 1) > LENGTH_SHARE:
            cell = Cell("prefill", context)
            yield (
                f"{cell.id}: taken, but its prompt had {found.prompt_tokens:,} tokens; "
                "ours are exact"
            )


def _baseline(file: _File, profile: str, run_id: str, cells: dict[str, CellBaseline]) -> Baseline:
    told = file.metadata
    decode = [found for found in file.results if found.cell.id in cells]
    sources = {_SOURCES[found.aggregate_source] for found in decode}
    prefill = [context for context in sorted(file.prefill) if Cell("prefill", context).id in cells]
    gpu_count, vram_gb = _hardware(file)
    return Baseline(
        hardware=Hardware(profile=profile, gpu_count=gpu_count, vram_gb=vram_gb),
        match=Match(gpu_count=gpu_count, served_model=told.model, engine=told.engine),
        settings=BaselineSettings(
            duration_s=told.duration_per_test,
            max_tokens=told.max_tokens,
            method=METHOD,
            endpoint="chat",
            prompts="shared",
            capacity="reserved",
            contexts=sorted(set(told.context_lengths)) if file.results else [],
            concurrency=sorted(set(told.concurrency_levels)) if file.results else [],
            prefill_contexts=prefill,
        ),
        runs={
            run_id: Run(
                date=told.timestamp,
                engine=told.engine,
                served_model=told.model,
                bench=f"{TOOL} {told.version}",
                decode_test=told.decode_mode,
                prefill_mode=told.prefill_mode or None,
                token_source=", ".join(sorted(sources)) or None,
                kv_tokens=told.max_total_tokens or None,
            )
        },
        cells=cells,
    )


def _hardware(file: _File) -> tuple[int | None, int | None]:
    """GPU count and their memory in GB. They are the measuring host's, so only if the server was
    on it."""
    if not _LOOPBACK.match(file.metadata.server):
        return None, None
    seen = [p.hardware_summary for p in file.prefill.values()]
    seen += [r.hardware_summary for r in file.results]
    count = max((part.gpu_count for part in seen), default=0)
    vram_mb = max((part.vram_total_mb for part in seen), default=0.0)
    return count or None, round(vram_mb / 1024) or None
