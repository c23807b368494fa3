"""A changed baseline keeps the bytes of everything that did not change."""

from pathlib import Path

from hypothesis import given, settings

from pytest_llmperf.baseline.file import Loaded, dumps, loads
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.baseline.splice import rewrite
from tests.baseline.samples import SMALL, baselines


def loaded(text: str) -> Loaded:
    return Loaded(Path("x"), text, loads(text, "x"))


def faster(baseline: Baseline) -> Baseline:
    """The same with one figure of one cell changed."""
    cell = baseline.cells["decode[8K-c1]"]
    cell = cell.model_copy(update={"total_tok_s": [200.5, 150.25]})
    return baseline.model_copy(update={"cells": {**baseline.cells, "decode[8K-c1]": cell}})


def test_comments_and_own_layout_survive_where_nothing_changed() -> None:
    text = "# ours\n" + SMALL.replace(
        "runs:\n", "# wide on purpose\ntolerance: {itl_ms: 0.30}\nruns:\n", 1
    ).replace("  decode[8K-c16]: {", "  # never fitted\n  decode[8K-c16]: { ").replace(
        "prefill_tok_s: [18500]", "prefill_tok_s: [ 18500 ]"
    )
    old = loaded(text)
    changed = rewrite(old, faster(old.baseline))
    assert changed == text.replace("153.7", "200.5").replace("  # never fitted\n", "")


def test_nothing_changed_means_the_very_text() -> None:
    text = SMALL.replace("...\n", "# end\n")
    assert rewrite(loaded(text), loads(text, "x")) == text


def test_a_layout_of_another_kind_is_written_anew() -> None:
    """One flow mapping for all cells cannot take a line of ours; the figures come first."""
    head, cells = SMALL.removesuffix("...\n").split("cells:\n")
    one = "cells: {prefill[8K]: {runs: [first], ttft_ms: [4]}}\n".replace(
        "prefill[8K]", '"prefill[8K]"'
    )
    assert cells
    old = loaded(head + one)
    new = faster(loads(SMALL, "x"))
    assert rewrite(old, new) == dumps(new)


@given(baselines(), baselines())
@settings(max_examples=30, deadline=None)
def test_any_change_reads_back_as_the_new_baseline(old: Baseline, new: Baseline) -> None:
    text = rewrite(Loaded(Path("x"), dumps(old), old), new)
    assert loads(text, "x") == new
