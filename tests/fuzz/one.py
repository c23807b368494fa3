"""One target under libFuzzer: ``python -m tests.fuzz.one TARGET [libFuzzer's arguments]``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["pytest_llmperf.client", "pytest_llmperf.engines",
                                         "prometheus_client.parser"]):  # fmt: skip
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    program, target, *arguments = sys.argv
    atheris.Setup([program, *arguments], TARGETS[target])
    atheris.Fuzz()
