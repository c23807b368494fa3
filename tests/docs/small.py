"""Stands in for ``pytest`` in the documentation's commands: the same run, small.

Only the size changes: one context, one stream, a window of two seconds, two runs where there are
several. Tolerances are wide, since what is tested is the command and not the speed of this machine;
a simulated server that is told to be slower than by that much still fails.
"""

from __future__ import annotations

import subprocess
import sys

SIZE = {
    "--llm-contexts": "8K",
    "--llm-concurrency": "1",
    "--llm-duration": "2",
    "--llm-settle": "0.2",
}
RUNS = "--llm-runs"
WIDE = 0.35
GATED = ("total_tok_s", "itl_ms", "ttft_ms", "steps_s", "prefill_tok_s")


def shrink(words: list[str]) -> list[str]:
    """The arguments of the small run; a run that measures nothing stays as it is."""
    if not any(word.startswith(("--llm-url", "--llm-serve")) for word in words):
        return words
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word.partition("=")[0] not in SIZE:
            kept.append("2" if kept and kept[-1] == RUNS else word)
        skip = word in SIZE
    size = [f"{name}={value}" for name, value in SIZE.items()]
    wide = [f"--llm-tolerance={metric}={WIDE}" for metric in GATED]
    return [*kept, *size, *wide]


if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", *shrink(sys.argv[1:])]))
