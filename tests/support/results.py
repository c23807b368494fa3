"""Runs to render: the two published reports as results, and what can become of one."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from pytest_llmperf.model.grid import Cell, parse_tokens
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import (
    Capacity,
    CellRecord,
    ClientHealth,
    Comparison,
    Measurement,
    Notice,
    Outcome,
    RunResult,
    RunSettings,
    Series,
    ServerInfo,
    ServerSide,
    Status,
)

DATA = Path(__file__).parent.parent / "data" / "reports"
SECRET = "sk-live-0123456789abcdef"

_FACTS: dict[str, dict[str, Any]] = {
    "rtxpro6k_x4": {
        "hardware": {
            "type": "Discrete GPU",
            "gpu": "RTX PRO 6000 Blackwell Server Edition",
            "gpu_count": 4,
            "vram_gb": 384,
            "os": "linux",
        },
        "version": "0.33.0rc1.dev141",
        "model": "deepseek",
        "info": {"build": "cuda-13.0", "commit": "48dcffbb7c8f"},
        "kv": 1_441_792,
    },
    "h200nvl_x2": {
        "hardware": {
            "type": "Discrete GPU",
            "gpu": "H200 NVL",
            "gpu_count": 2,
            "vram_gb": 282,
            "os": "linux",
        },
        "version": "0.32.0",
        "model": "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "info": {"build": "cuda-13.2"},
        "kv": 1_900_544,
    },
}


def report_rows(name: str = "rtxpro6k_x4") -> list[dict[str, str]]:
    """The rows of "All measurements" of a published report."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_run(name: str = "rtxpro6k_x4", *, compared: bool = True, **changes: Any) -> RunResult:
    """A published report as a finished run; every cell passes against itself plus a little."""
    facts = _FACTS[name]
    rows = report_rows(name)
    contexts = sorted({int(r["context_tokens"]) for r in rows if r["phase"] == "decode"})
    fields: dict[str, Any] = {
        "llmperf_version": "0.1.0",
        "date": "2026-11-30T18:30:00+00:00",
        "finished": True,
        "url": "http://gpu1:8000",
        "profile": name if compared else None,
        "hardware": facts["hardware"] if compared else {},
        "run_info": {
            "quantization": "MXFP4+FP8",
            "backend": "cuda",
            "repository": "github.com/vllm-project/vllm",
            "revision": "main",
            "launch_command": f"env HF_TOKEN=hf_abcdefghijkl vllm serve deepseek-ai/x --api-key "
            f"{SECRET} --tensor-parallel-size 4 --speculative-config "
            '\'{"method":"dspark","num_speculative_tokens":7}\'',
            **facts["info"],
        },
        "server": ServerInfo(
            engine="vllm",
            version=facts["version"],
            model=facts["model"],
            model_root="deepseek-ai/DeepSeek-V4.1-Flash-1017",
            max_model_len=524_288,
            max_num_seqs=128,
            kv_tokens=facts["kv"],
            kv_source="vllm:cache_config_info kv_cache_size_tokens",
            speculative=True,
            prefix_cache=True,
        ),
        "settings": RunSettings(
            duration_s=30,
            max_tokens=4096,
            method=1,
            endpoint="chat",
            prompts="shared",
            sampling="temperature=1.0 top_p=1.0",
            text_hash="5f0c2d11",
            capacity="reserved",
            contexts=contexts,
            concurrency=[2**i for i in range(8)],
            prefill_contexts=[int(r["context_tokens"]) for r in rows if r["phase"] == "prefill"],
        ),
        "cells": [record(row, compared=compared, kv=facts["kv"]) for row in rows],
    }
    return RunResult(**{**fields, **changes})


def record(row: dict[str, str], *, compared: bool = True, kv: int = 1_441_792) -> CellRecord:
    """One row of a published report as the record of a cell."""
    cell = Cell(row["phase"], parse_tokens(row["context"]), int(row["concurrency"]))  # type: ignore[arg-type]
    nodeid = f"perf_tests/test_{cell.phase}.py::test_{cell.phase}[{cell.param_id}]"
    measured = measurement(cell, row, kv)
    if measured.status is Status.OVER_CAPACITY:
        return CellRecord(
            cell=cell.id,
            outcome=Outcome.OVERCAP,
            message=measured.reason,
            measurement=measured,
            attempts=[measured],
            nodeid=nodeid,
        )
    return CellRecord(
        cell=cell.id,
        outcome=Outcome.PASS if compared else Outcome.MEASURED,
        measurement=measured,
        attempts=[measured],
        comparisons=compare(measured) if compared else [],
        nodeid=nodeid,
    )


def measurement(cell: Cell, row: dict[str, str], kv: int) -> Measurement:
    """A measurement with the row's values, and plausible ones for what the row lacks."""
    known = {
        "phase": cell.phase,
        "context": cell.context,
        "concurrency": cell.concurrency,
        "started": "2026-11-30T18:31:00+00:00",
        "method": 1,
    }
    if row["status"] == "over_capacity":
        needs = cell.concurrency * (cell.context + 4096)
        why = f"needs {needs:,} KV tokens if nothing is shared, the server has {kv:,}"
        capacity = Capacity(needs=needs, budget=kv, reason=why)
        return Measurement(status=Status.OVER_CAPACITY, reason=why, capacity=capacity, **known)
    value = {key: float(text) for key, text in row.items() if text and key in _COLUMNS}
    if cell.phase == "prefill":
        rate = value["total_tok_s"]
        return Measurement(
            status=Status.VALID,
            prefill_tok_s=rate,
            prefill_samples=[rate * 0.99, rate, rate * 1.01],
            ttft_ms=value["ttft_ms"],
            ttft_n=3,
            completed=int(value["completed"]),
            prompt_tokens=cell.context,
            cached_tokens=24,
            **known,
        )
    total, ttft, itl = value["total_tok_s"], value["ttft_ms"], value["itl_ms"]
    n = max(cell.concurrency, 2)
    waves = [math.sin(i * 1.7 + cell.context) for i in range(60)]
    return Measurement(
        status=Status.VALID,
        token_source="usage",
        usage_mode="continuous",
        total_tok_s=total,
        total_tok_s_ci95=(total * 0.991, total * 1.009),
        busy_tok_s=total * 1.002,
        per_request_tok_s=value["per_request_tok_s"],
        ttft_ms=ttft,
        ttft_p90_ms=ttft * 1.3,
        ttft_p99_ms=ttft * 1.5,
        ttft_n=n,
        ttft_burst_ms=ttft,
        ttft_warm=True,
        itl_ms=itl,
        itl_p99_ms=itl * 1.2,
        chunk_gap_p99_ms=itl * 3.1,
        chunks_s=total / 2.8,
        tokens_per_chunk=2.8,
        steps_s=total / 2.8 / cell.concurrency,
        tokens_per_step=2.8 * cell.concurrency,
        in_flight_avg=float(cell.concurrency),
        decoding_avg=cell.concurrency * 0.998,
        active_avg=value["avg_active"],
        completed=int(value["completed"]),
        output_tokens=int(value["output_tokens"]),
        measured_s=value["measured_s"],
        prompt_tokens=cell.context,
        cached_tokens=cell.context - 100,
        server=ServerSide(
            running_mean=float(cell.concurrency),
            waiting_max=0.0,
            kv_use_max=min(1.0, cell.context * 1.1 / kv),
            preemptions=0,
            generated_tokens=total * 30.1,
            generated_tok_s=total * 1.001,
        ),
        client=ClientHealth(loop_lag_p99_ms=0.8, loop_lag_max_ms=2.1, cpu_share=0.12),
        std_errors={"total_tok_s": total * 0.0046, "itl_ms": itl * 0.004},
        series=Series(bin_s=0.5, tokens=[total * 0.5 * (1 + 0.04 * wave) for wave in waves]),
        ttfts_ms=[ttft * (1 + 0.3 * math.sin(i)) for i in range(n)],
        itls_ms=[itl * (1 + 0.02 * math.cos(i)) for i in range(n)],
        **known,
    )


_COLUMNS = (
    "total_tok_s",
    "per_request_tok_s",
    "ttft_ms",
    "itl_ms",
    "avg_active",
    "completed",
    "output_tokens",
    "measured_s",
)


def compare(measured: Measurement, factor: float = 1.004) -> list[Comparison]:
    """Comparisons against a baseline that was ``factor`` times as fast."""
    names = ["prefill_tok_s"] if measured.phase == "prefill" else ["total_tok_s", "itl_ms"]
    comparisons = []
    for name in [*names, "ttft_ms"]:
        metric = METRICS[name]
        value = measured.value(name)
        assert value is not None
        base = value * factor if metric.better == "higher" else value / factor
        delta = (value - base) / base
        tolerance = {"ttft_ms": 0.30, "itl_ms": 0.10}.get(name, 0.07)
        beyond = abs(delta) > tolerance
        worse = "worse" if metric.worse(value, base) else "better"
        gated = measured.phase in metric.gated
        comparisons.append(
            Comparison(
                metric=name,
                baseline=base,
                measured=value,
                delta=delta,
                tolerance=tolerance,
                n=1,
                weak=True,
                gated=gated,
                verdict="observed" if not gated else worse if beyond else "ok",  # type: ignore[arg-type]
            )
        )
    return comparisons


def change(run: RunResult, cell: str, **changes: Any) -> RunResult:
    """The run with one cell's record changed; a failing outcome fails it."""
    if "outcome" in changes:
        changes.setdefault("failed", changes["outcome"].failed)
    assert cell in [record.cell for record in run.cells]
    cells = [r.model_copy(update=changes) if r.cell == cell else r for r in run.cells]
    return run.model_copy(update={"cells": cells})


def find(run: RunResult, cell: str) -> CellRecord:
    """The record of a cell."""
    return next(record for record in run.cells if record.cell == cell)


def troubled_run(name: str = "rtxpro6k_x4") -> RunResult:
    """A run in which every outcome occurs."""
    run = published_run(name)

    def measured(cell: str) -> Measurement:
        found = find(run, cell).measurement
        assert found is not None
        return found

    slow = measured("decode[8K-c16]")
    run = change(
        run,
        "decode[8K-c16]",
        outcome=Outcome.REGRESSED,
        message="a table\nfor the test",
        notes=["total tok/s fell: slower steps (the engine got slower)"],
        comparisons=compare(slow, 1.16),
        attempts=[
            slow,
            slow.model_copy(update={"total_tok_s": 771.3, "itl_ms": 19.9}),
            slow.model_copy(update={"total_tok_s": 766.2, "itl_ms": 20.4}),
        ],
        measurement=slow.model_copy(
            update={"warnings": [Notice(code="preemptions", text="3 requests were preempted")]}
        ),
    )
    run = change(
        run,
        "prefill[32K]",
        outcome=Outcome.REGRESSED,
        comparisons=compare(measured("prefill[32K]"), 1.12),
    )
    run = change(
        run,
        "decode[16K-c2]",
        outcome=Outcome.IMPROVED,
        comparisons=compare(measured("decode[16K-c2]"), 0.85),
    )
    broken = measured("decode[32K-c8]").model_copy(
        update={
            "status": Status.INVALID,
            "reason": "2 of 8 requests failed: HTTP 500: out of <memory>",
        }
    )
    run = change(
        run, "decode[32K-c8]", outcome=Outcome.INVALID, measurement=broken, attempts=[broken],
        message=broken.reason, comparisons=[],
    )  # fmt: skip
    run = change(
        run, "decode[64K-c32]", outcome=Outcome.CAPACITY_REGRESSION,
        message="needs 2,228,224 KV tokens, has 1,441,792; the baseline has 997.8 tok/s",
    )  # fmt: skip
    run = change(run, "decode[128K-c8]", outcome=Outcome.NEW, comparisons=[])
    run = change(run, "decode[256K-c1]", outcome=Outcome.UPDATED)
    run = change(
        run,
        "decode[507K-c2]",
        outcome=Outcome.UNGATED,
        comparisons=[
            c.model_copy(
                update={"gated": False, "verdict": "observed", "why": "noise 18 % is above 15 %"}
            )
            for c in compare(measured("decode[507K-c2]"))
        ],
    )
    return run.model_copy(
        update={
            "stale": ["decode[4K-c1]"],
            "warnings": [Notice(code="other-traffic", text="the server was busy before the run")],
        }
    )
