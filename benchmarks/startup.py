"""What the plugin costs a test run that does not use it: bare pytest with and without, in pairs.

usage: python -m benchmarks.startup [--pairs 20]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_MS = 10.0


def time_pytest(folder: Path, *options: str) -> tuple[float, float]:
    """Wall and CPU milliseconds of a run of one empty test with no other plugins."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        str(folder),
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * wall, 1e3 * cpu


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        walls, cpus = [], []
        for i in range(pairs + 1):
            with_it, without = (("-p", "pytest_llmperf.plugin"), ())
            order = (with_it, without) if i % 2 else (without, with_it)
            found = {options: time_pytest(folder, *options) for options in order}
            if i:  # the first pair fills the caches
                walls.append(found[with_it][0] - found[without][0])
                cpus.append(found[with_it][1] - found[without][1])
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    print(f"plugin, unused: {wall:+.1f} ms wall, {cpu:+.1f} ms CPU (median of {pairs} pairs)")
    print(f"goal: below {GOAL_MS:g} ms: {'met' if cpu < GOAL_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
