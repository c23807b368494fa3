"""The inputs kept from fuzzing, findings among them."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.targets import TARGETS

INPUTS = sorted(f"{path.parent.name}/{path.name}" for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("name", INPUTS)
def test_what_must_hold_for_any_bytes_holds_for_these(name: str) -> None:
    began = time.process_time()
    TARGETS[name.partition("/")[0]]((CORPUS / name).read_bytes())
    assert time.process_time() - began < 1


def test_both_targets_have_inputs() -> None:
    assert {name.partition("/")[0] for name in INPUTS} == set(TARGETS)
