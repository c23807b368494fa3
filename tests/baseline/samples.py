"""Baselines for tests: one small enough to read, and a strategy for any."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from pytest_llmperf.baseline.schema import STORED, Baseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS

SMALL = """\
schema: 1
hardware: {profile: lab, gpu: H200 NVL, gpu_count: 2}
match: {gpu: H200 NVL, gpu_count: 2, model: org/model, served_model: m, engine: vllm}
settings: {duration_s: 30, max_tokens: 256, contexts: [8K, 1000], concurrency: [1, 16], prefill_contexts: [8K]}
runs:
  first:
    date: "2026-01-02"
    engine_version: "0.10"
  second:
    engine_version: "0.11"
cells:
  prefill[8K]: {runs: [first], prefill_tok_s: [18500], ttft_ms: [442]}
  decode[8K-c1]:
    runs: [first, second]
    total_tok_s: [153.7, 150.25]
    itl_ms: [6.3, null]
  decode[8K-c16]: {runs: [first], over_capacity: {needs: 135168, budget: null}}
...
"""  # noqa: E501

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
awkward = st.sampled_from(
    ["0.10", "12:30", "1e5", "2026-11-30", "yes", "n", "null", "~", "0x1F", "1_000", ".5", "+1",
     "#", "'", '"', "{", "a:", "[]", "*", "&", "!x", "%", "@", "`", "|", "a: b", "- a", "a #b",
     " lead", "trail ", "a\n\nb", "a\n", "\n", "x " * 60, "\t", "\x85", "\u2028", "\ufeff"]
)  # fmt: skip
"""Text that a YAML reader could take for something else."""
texts = st.one_of(text, awkward)
counts = st.integers(1, 2**40)
positive = st.one_of(st.floats(1e-4, 1e9, allow_nan=False), st.integers(1, 10**9), st.just(math.pi))
run_ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._+-]{0,20}\Z")


@st.composite
def _cells(draw: st.DrawFn, runs: list[str]) -> tuple[str, dict[str, Any]]:
    phase = draw(st.sampled_from(["prefill", "decode"]))
    context = draw(st.sampled_from([0, 1000, 8192, 519168]))
    cell = Cell(phase, context, draw(st.integers(1, 512)) if phase == "decode" else 1)
    mine = draw(st.lists(st.sampled_from(runs), min_size=1, unique=True))
    if draw(st.booleans()):
        over = {"needs": draw(st.none() | counts), "budget": draw(st.none() | counts)}
        return cell.id, {"runs": mine, "over_capacity": over}
    names = [n for n in STORED if n not in METRICS or phase in METRICS[n].phases]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    values = st.lists(st.none() | positive, min_size=len(mine), max_size=len(mine))
    return cell.id, {"runs": mine, **{name: draw(values) for name in chosen}}


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    """Any baseline that the schema allows."""
    names = draw(st.lists(run_ids, min_size=1, max_size=3, unique=True))
    optional = st.none() | texts
    runs = {
        name: {
            "date": draw(optional),
            "engine_version": draw(optional),
            "launch_command": draw(optional),
            "note": draw(optional),
            "kv_tokens": draw(st.none() | counts),
            "info": draw(st.dictionaries(text.map(lambda t: t[:64]), texts, max_size=2)),
        }
        for name in names
    }
    cells = dict(draw(st.lists(_cells(names), max_size=5)))
    contexts = st.lists(st.sampled_from([0, 1000, 8192, 519168]), unique=True)
    return Baseline.model_validate(
        {
            "simulated": draw(st.booleans()),
            "hardware": {"profile": draw(texts), "gpu": draw(optional), "os": draw(optional)},
            "match": {"model": draw(optional), "served_model": draw(optional)},
            "settings": {
                "extra_body": draw(st.none() | st.just("") | texts),
                "contexts": draw(contexts),
                "concurrency": [1, 2],
                "prefill_contexts": draw(contexts),
            },
            "tolerance": draw(
                st.dictionaries(
                    st.sampled_from(["ttft_ms", "itl_ms@decode[8K-c1]"]), st.floats(0.001, 0.999)
                )
            ),
            "limits": draw(
                st.dictionaries(
                    st.sampled_from(["ttft_ms", "total_tok_s@decode[*-c1]"]), st.floats(0.1, 1e6)
                )
            ),
            "gate": draw(
                st.dictionaries(
                    st.sampled_from(["ttft_ms", "*@decode[8K-*]"]), st.just("watch"), max_size=2
                )
            ),
            "floor": draw(st.dictionaries(st.just("ttft_ms"), st.floats(0, 100))),
            "runs": runs,
            "cells": cells,
        }
    )
