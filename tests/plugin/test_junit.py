"""What JUnit files and other report plugins get of a cell."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import CellRecord, Comparison, Measurement, Notice, Outcome, Status
from pytest_llmperf.run.fixture import _publish

ROOT = Path(__file__).resolve().parents[2]
RECORD = CellRecord(
    cell="decode[8K-c16]",
    outcome=Outcome.PASS,
    measurement=Measurement(
        phase="decode",
        context=8192,
        concurrency=16,
        status=Status.VALID,
        started="2026-01-01T00:00:00+00:00",
        method=1,
        total_tok_s=765.91327,
        itl_ms=20.8541,
    ),
    comparisons=[
        Comparison(
            metric="total_tok_s", baseline=769.0, measured=765.9, delta=-0.00401,
            tolerance=0.07, gated=True, verdict="ok",
        )
    ],
)  # fmt: skip


def published(
    pytester: pytest.Pytester, *records: CellRecord, findings: Sequence[Notice] = ()
) -> dict[str, object]:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    item = pytester.getitem("def test_func(): pass")
    item.user_properties.append(("theirs", 1))
    for record in records:
        _publish(item, record, findings)
    assert len(dict(item.user_properties)) == len(item.user_properties), "a property is twice there"
    return dict(item.user_properties)


def test_values_and_changes_are_properties_and_others_stay(pytester: pytest.Pytester) -> None:
    """Observed metrics only; a value needs no baseline."""
    assert published(pytester, RECORD) == {
        "theirs": 1,
        "llmperf_outcome": "PASS",
        "llmperf_total_tok_s": 765.913,
        "llmperf_itl_ms": 20.8541,
        "llmperf_total_tok_s_change": -0.004,
    }


def test_what_fails_the_run_is_with_every_cell(pytester: pytest.Pytester) -> None:
    """A finding is no cell's own, and JUnit knows of nothing but tests."""
    found = published(pytester, RECORD, findings=[Notice(code="kv-cache", text="10% smaller")])
    assert found["llmperf_findings"] == "kv-cache: 10% smaller"
    assert found["llmperf_outcome"] == "PASS"


def test_a_rerun_replaces_what_was_there(pytester: pytest.Pytester) -> None:
    """An invalid second attempt leaves no number of the first behind."""
    invalid = CellRecord(cell=RECORD.cell, outcome=Outcome.INVALID, message="gone")
    assert published(pytester, RECORD, invalid) == {"theirs": 1, "llmperf_outcome": "INVALID"}


def test_the_reference_names_properties_and_outcomes_that_exist() -> None:
    """docs/reference/junit.md is in step with the code."""
    text = (ROOT / "docs" / "reference" / "junit.md").read_text(encoding="utf-8")
    example = re.search(r"```xml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    names = {p.get("name", "") for p in ET.fromstring(example[1]).iter("property")}
    known = {"outcome", *METRICS, *(f"{name}_change" for name in METRICS)}
    assert names
    assert {name.removeprefix("llmperf_") for name in names} <= known
    (row,) = (line for line in text.splitlines() if line.startswith("| `llmperf_outcome`"))
    assert set(re.findall(r"`([A-Z ]+)`", row)) == {outcome.value for outcome in Outcome}
