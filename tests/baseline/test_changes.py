"""What differs from the newest run of a baseline is named; less room for KV is a finding."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmperf.baseline.changes import find_lost_kv, list_changes, observe
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.result import GpuUse, Measurement, ServerInfo, Status

KV = 1_000_000


def profile(*runs: dict[str, Any], **hardware: Any) -> Baseline:
    """A baseline with these runs, oldest first."""
    names = [f"r{n}" for n, _ in enumerate(runs)]
    return Baseline.model_validate(
        {
            "hardware": {"profile": "lab", **hardware},
            "settings": {"contexts": [8192], "concurrency": [1], "prefill_contexts": [8192]},
            "runs": dict(zip(names, runs, strict=True)),
            "cells": {"prefill[8K]": {"runs": names, "prefill_tok_s": [1.0] * len(names)}},
        }
    )


def server(**facts: Any) -> ServerInfo:
    return ServerInfo(engine="vllm", model="m", **facts)


def measured(*clocks: float) -> list[Measurement]:
    return [
        Measurement(
            phase="decode", context=8192, status=Status.VALID, started="now", method=1,
            gpus=[GpuUse(index=0, name="H200", sm_mhz=clock)],
        )
        for clock in clocks
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "here", "told", "named"),
    [
        ({"engine_version": "0.9"}, {"version": "0.10"}, {}, "engine version 0.9 -> 0.10"),
        ({"engine_version": "0.9"}, {}, {"engine_version": "1"}, "engine version 0.9 -> 1"),
        ({"quantization": "fp8"}, {"quantization": "awq"}, {}, "quantization fp8 -> awq"),
        ({"driver": "560"}, {}, {"driver": "570"}, "driver 560 -> 570"),
        ({"commit": "abc"}, {}, {"commit": "def"}, "commit abc -> def"),
        ({"info": {"max_num_seqs": "256"}}, {"max_num_seqs": 64}, {}, "max_num_seqs 256 -> 64"),
        ({"max_model_len": 8192}, {"max_model_len": 4096}, {}, "longest sequence 8192 -> 4096"),
        ({"kv_tokens": KV}, {"kv_tokens": 2 * KV}, {}, "KV cache 1,000,000 -> 2,000,000 tokens"),
        (
            {"info": {"power_limit_w": "600"}}, {}, {"power_limit_w": "450"},
            "power limit in W 600 -> 450",
        ),
    ],
)  # fmt: skip
def test_a_fact_that_changed_is_named(
    stored: dict[str, Any], here: dict[str, Any], told: dict[str, str], named: str
) -> None:
    """With both sides; one that is the same is not, nor one that a side does not tell."""
    changes = list_changes(profile({"backend": "cuda", **stored}), server(**here), told)
    assert [str(change) for change in changes] == [named]


def test_nothing_changed_names_nothing() -> None:
    """A few blocks of KV more or less are the same server; a vendor's name is no other GPU."""
    known = {
        "engine_version": "1",
        "kv_tokens": KV,
        "info": {"max_num_seqs": "8", "sm_mhz": "1900"},
    }
    here = server(version="1", kv_tokens=KV - 5000, max_num_seqs=8)
    told = {"gpu": "NVIDIA H200"}
    assert list_changes(profile(known, gpu="H200"), here, told, measured(1910, 1870)) == []


def test_the_newest_run_is_compared_with() -> None:
    """Wherever it stands in the file."""
    runs = (
        {"date": "2026-03-01", "engine_version": "3"},
        {"date": "2026-01-01", "engine_version": "1"},
    )
    assert list_changes(profile(*runs), server(version="3"), {}) == []


def test_clocks_are_those_of_the_middle_cell() -> None:
    """As they are stored; within 3 % they follow load and warmth."""
    stored = observe(server(max_num_seqs=4), measured(1900, 1700, 1980))
    assert stored == {"max_num_seqs": "4", "sm_mhz": "1900"}
    known = profile({"info": stored})
    assert list_changes(known, server(), {}, measured(1850, 1300)) != []
    (change,) = list_changes(known, server(), {}, measured(1500, 1510))
    assert str(change) == "SM clock 1,900 -> 1,505 MHz"


@pytest.mark.parametrize(("kv", "lost"), [(KV, 0), (981_000, 0), (979_000, 1), (2 * KV, 0)])
def test_a_smaller_kv_cache_is_a_finding(kv: int, lost: int) -> None:
    """By more than 2 %; by its name, with both sizes."""
    found = find_lost_kv(profile({"kv_tokens": KV}), server(kv_tokens=kv))
    assert [notice.code for notice in found] == ["kv-cache"] * lost
    for notice in found:
        assert f"1,000,000 -> {kv:,} tokens" in notice.text


def test_a_kv_cache_that_nobody_measured_is_none() -> None:
    """Unknown on a side; or what the user gave in the server's place."""
    assert find_lost_kv(profile({}), server(kv_tokens=1)) == []
    assert find_lost_kv(profile({"kv_tokens": KV}), server()) == []
    given = server(kv_tokens=1, kv_source="--llm-kv-tokens")
    assert find_lost_kv(profile({"kv_tokens": KV}), given) == []


def test_a_run_that_does_not_tell_its_kv_cache_hides_none() -> None:
    """The newest that tells it counts."""
    runs = ({"date": "2026-01-01", "kv_tokens": KV}, {"date": "2026-02-01"})
    assert find_lost_kv(profile(*runs), server(kv_tokens=KV // 2)) != []
