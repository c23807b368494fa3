"""One target under libFuzzer: ``python -m tests.fuzz.one TARGET [libFuzzer's arguments]``."""

from __future__ import annotations

import sys
import time

import atheris

with atheris.instrument_imports(
    include=["pytest_llmperf.client", "pytest_llmperf.engines", "prometheus_client.parser"]
):
    from tests.fuzz.targets import TARGETS

MOST_S = 2.0
"""CPU time for one input, instrumented; libFuzzer's own limit is of wall time, which a busy machine
uses up on its own."""

if __name__ == "__main__":
    program, name, *arguments = sys.argv

    def check(data: bytes) -> None:
        began = time.process_time()
        TARGETS[name](data)
        assert time.process_time() - began < MOST_S, "takes too long"

    atheris.Setup([program, *arguments], check)
    atheris.Fuzz()
