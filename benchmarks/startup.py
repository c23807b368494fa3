"""What the plugin costs a test run that does not use it: bare pytest with and without, in turn.

Without it an empty plugin is loaded: to find any by its name pytest looks through all installed
packages, which it does anyway where plugins load by themselves.

usage: python -m benchmarks.startup [--runs 20]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_MS = 10.0
OURS = "pytest_llmperf.plugin"
EMPTY = "llmperf_startup_empty"


def time_pytest(folder: Path, plugin: str) -> tuple[float, float]:
    """Wall and CPU milliseconds of a run of one empty test with no plugin but this one."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        plugin,
        str(folder),
    ]
    # modules come from compiled files, as they do where a package is installed
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "PYTHONPATH": str(folder),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * wall, 1e3 * cpu


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"{EMPTY}.py").touch()
        found: dict[str, list[tuple[float, float]]] = {OURS: [], EMPTY: []}
        for i in range(runs + 1):
            for plugin in (OURS, EMPTY) if i % 2 else (EMPTY, OURS):
                found[plugin].append(time_pytest(folder, plugin))
    # the first runs fill the caches; the least of the others is what nothing else disturbed
    wall, cpu = (
        min(run[kind] for run in found[OURS][1:]) - min(run[kind] for run in found[EMPTY][1:])
        for kind in (0, 1)
    )
    print(f"plugin, unused: {wall:+.1f} ms wall, {cpu:+.1f} ms CPU (least of {runs} runs each)")
    print(f"goal: below {GOAL_MS:g} ms: {'met' if cpu < GOAL_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
