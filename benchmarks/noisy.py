"""Does the gate tell a change from noise, end to end? Real runs against simulated servers.

    python -m benchmarks.noisy [--only "by cell,A/B"] [--duration 2] [--realtime]

A world is a kind of noise that real servers show. In each a profile of five runs is measured, then
runs with and without a change are judged by it; every run and every start draws anew, from seeds
that are written down here. Of A/B two servers are judged by each other. The simulator is faster
than its profile, so that a short window holds enough decoding steps. Exits 1 where an answer is not
the one wanted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.load import BENCH
from benchmarks.worlds import PAUSED, RUNS, Case, World, list_cases
from pytest_llmperf.report.json import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "noisy.json"
FOLDER = BENCH / "noisy"
LIMIT_S = 600

CONFTEST = f"""\
import os, time

def pytest_runtest_setup(item):
    if "{PAUSED}" in item.name:
        time.sleep(float(os.environ.get("NOISY_PAUSE_S", "0")))
"""
"""A user's server is left alone for a while before a cell."""


def pytest(*options: str, duration: float, pause_s: float = 0.0) -> tuple[int, str]:
    """Exit code and words of a run in ``FOLDER``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider",
               "perf_tests", f"--llm-duration={duration:g}", "--llm-settle=0.3",
               *options]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env={**environment, "NOISY_PAUSE_S": str(pause_s)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout + done.stderr


def make_project() -> None:
    """An empty project in ``FOLDER``."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "perf_tests", FOLDER / "perf_tests")
    (FOLDER / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (FOLDER / "conftest.py").write_text(CONFTEST)


def make_profile(world: World, duration: float) -> None:
    """The profile of a world, of ``RUNS`` runs.

    Raises:
        SystemExit: it could not be measured.
    """
    code, words = pytest(
        f"--llm-url={world.server(world.baseline_seed)}", f"--hardware={world.profile}",
        "--update-baselines", f"--llm-runs={RUNS}", f"--llm-report=json:{world.profile}.json",
        *world.grid, duration=duration,
    )  # fmt: skip
    if code:
        sys.exit(f"{words}\nno baseline of {world.name}: exit code {code}")


def judge(case: Case, number: int, duration: float) -> dict[str, Any]:
    """Make its runs; a row of the results. All that they measured stays in ``FOLDER``."""
    began, results, made = time.monotonic(), FOLDER / f"{number}.json", 0
    for server in case.servers:
        made += 1
        code, words = pytest(
            f"--llm-url={server}", f"--llm-report=json:{results}", *case.arguments,
            duration=duration, pause_s=case.pause_s,
        )  # fmt: skip
        if code:
            break
    run = read(results) if results.exists() else None
    wrong = "nothing was measured" if run is None else case.check(run)
    if code != case.exit_code:
        wrong = f"exit code {code}; {wrong}"
    if wrong:
        print(words)
    return {
        "name": case.name,
        "servers": [*case.servers[:made], *([case.against] if case.against else [])],
        "wanted": case.wanted,
        "wrong": wrong,
        "runs": made,
        "took_s": round(time.monotonic() - began, 1),
        "matrix": run.matrix if run else "",
        "cells": {
            record.cell: {
                "outcome": record.outcome.value,
                "starts": [attempt.start for attempt in record.attempts],
                "change": {
                    c.metric: [round(c.delta, 4), c.tolerance and round(c.tolerance, 4), c.verdict]
                    for c in record.comparisons
                    if c.delta is not None
                },
            }
            for record in (run.cells if run else ())
        },
    }


def main() -> None:
    """Print what was wanted and seen of each, and write it down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noisy", description=__doc__)
    parser.add_argument("--only", help="names that start with one of these, comma-separated")
    parser.add_argument("--duration", type=float, default=2.0, help="seconds a decode cell")
    parser.add_argument("--realtime", action="store_true", help="SCHED_FIFO, on a busy machine")
    parser.add_argument("--out", type=Path, help="where the JSON goes; a full run: noisy.json")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    cases = list_cases()
    chosen = [c for c in cases if c.name.startswith(tuple((options.only or "").split(",")))]
    began, rows = time.monotonic(), []
    make_project()
    known: set[str] = set()
    for number, case in enumerate(chosen, start=1):
        world, start = case.world, time.monotonic()
        if not case.against and world.profile not in known:
            known.add(world.profile)
            make_profile(world, options.duration)
            took = time.monotonic() - start
            print(f"{world.name}: a profile of {RUNS} runs{took:{62 - len(world.name)}.0f} s")
        row = judge(case, number, options.duration)
        rows.append(row)
        seen = row["wrong"] or "as wanted"
        print(f"{case.name:50} {case.wanted:36} {row['took_s']:4.0f} s  {seen}", flush=True)
    failed = sum(bool(row["wrong"]) for row in rows)
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "duration_s": options.duration,
        "took_s": round(time.monotonic() - began),
        "rows": rows,
    }
    out = options.out or (RESULTS if len(chosen) == len(cases) else BENCH / "noisy.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows) - failed} of {len(rows)} as wanted, {result['took_s']} s, written to {out}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
