"""Does the gate tell a change from noise, end to end? Real runs against simulated servers.

    python -m benchmarks.noisy [--only unchanged,A/B] [--duration 3] [--realtime]

A profile of five runs is measured, then runs with and without a change are judged by it, and pairs
of servers by each other. Every server starts with its own 1 % of noise (a seed each, in the order
below), so that even equal ones differ. The simulator is four times as fast as its profile, so that
a short window holds enough decoding steps. Exits 1 where an answer is not the one wanted.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load import BENCH
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, Outcome, RunResult
from pytest_llmperf.report.json import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "noisy.json"
FOLDER = BENCH / "noisy"
NOISE = 0.01
GRID = ("--llm-contexts=8K,32K", "--llm-concurrency=4,16,32")
ENGINE, ACCEPTANCE = "the engine got slower", "fewer draft tokens are accepted"
LIMIT_S = 600

Check = Callable[[RunResult], str]


def sim(seed: int, **changes: object) -> str:
    """A simulated server with its own noise."""
    parameters = {"speed": 4, "noise": NOISE, "seed": seed, **changes}
    return "sim:rtxpro6k_x4?" + "&".join(f"{name}={value}" for name, value in parameters.items())


@dataclass(frozen=True)
class Scenario:
    """A run, and what it must say."""

    name: str
    servers: tuple[str, ...]
    """The one to judge, and for A/B the other one."""
    exit_code: int
    wanted: str
    check: Check
    """What is wrong with the results, or empty."""

    @property
    def options(self) -> list[str]:
        """Of pytest."""
        url = f"--llm-url={self.servers[0]}"
        if len(self.servers) > 1:
            return [url, f"--llm-against={self.servers[1]}", *GRID]
        return [url, "--hardware=noisy"]


def nothing(run: RunResult) -> str:
    """Nothing is called worse."""
    return _tell("failed", [r for r in run.cells if r.failed]) or run.matrix


def high_concurrency(run: RunResult) -> str:
    """Exactly the decode cells from 16 requests on, by a slower engine."""
    slow = {r.cell for r in run.cells if Cell.parse(r.cell).concurrency >= 16}
    wrong = [r for r in run.cells if (r.outcome is Outcome.REGRESSED) != (r.cell in slow)]
    return _tell("not so", wrong) or slower_engine(run)


def slower_engine(run: RunResult) -> str:
    """A decode cell at least, and of each the engine's steps are named."""
    return _named(run, ENGINE)


def fewer_accepted(run: RunResult) -> str:
    """A decode cell at least, and of each the acceptance is named, not the engine."""
    steps = [
        r for r in run.cells for c in r.comparisons if (c.metric, c.verdict) == ("steps_s", "worse")
    ]
    return _tell("steps/s worse", steps) or _named(run, ACCEPTANCE)


def _named(run: RunResult, cause: str) -> str:
    failed = [r for r in run.cells if r.failed and r.cell.startswith("decode")]
    if not failed:
        return "no decode cell failed"
    return _tell(f"not {cause!r}", [r for r in failed if cause not in r.message])


def _tell(what: str, records: Sequence[CellRecord]) -> str:
    return f"{what}: {', '.join(f'{r.cell} {r.outcome.value}' for r in records)}" if records else ""


BASELINE_SEED, RUNS = 1, 5
SCENARIOS = (
    *(Scenario("unchanged", (sim(n),), 0, "passes", nothing) for n in (6, 7, 8)),
    *(
        Scenario("decode 10 % slower from 16 on", (sim(n, slow_conc="16+:0.9"),), 1,
                 "fails there only, names the engine", high_concurrency)
        for n in (9, 10)
    ),
    Scenario("acceptance x 0.6", (sim(11, acceptance=0.6),), 1, "fails, names the acceptance",
             fewer_accepted),
    Scenario("A/B, one build", (sim(12), sim(13)), 0, "passes", nothing),
    Scenario("A/B, 5 % slower", (sim(14, decode_speed=0.95), sim(15)), 1,
             "fails, names the engine", slower_engine),
)  # fmt: skip


def pytest(*options: str, duration: float) -> tuple[int, str]:
    """Exit code and words of a run in ``FOLDER``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider",
               "perf_tests", f"--llm-duration={duration:g}", "--llm-settle=0.5",
               *options]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    return done.returncode, done.stdout + done.stderr


def make_project() -> None:
    """An empty project in ``FOLDER``."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "perf_tests", FOLDER / "perf_tests")
    (FOLDER / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")


def make_profile(duration: float) -> None:
    """The profile of five runs.

    Raises:
        SystemExit: it could not be measured.
    """
    code, words = pytest(
        f"--llm-url={sim(BASELINE_SEED)}", "--hardware=noisy", "--update-baselines",
        f"--llm-runs={RUNS}", "--llm-report=json:baseline.json", *GRID, duration=duration,
    )  # fmt: skip
    if code:
        sys.exit(f"{words}\nno baseline: exit code {code}")


def judge(scenario: Scenario, number: int, duration: float) -> dict[str, Any]:
    """Run it; a row of the results. All that it measured stays in ``FOLDER``."""
    began, results = time.monotonic(), FOLDER / f"{number}.json"
    code, words = pytest(f"--llm-report=json:{results}", *scenario.options, duration=duration)
    run = read(results) if results.exists() else None
    wrong = "nothing was measured" if run is None else scenario.check(run)
    if code != scenario.exit_code:
        wrong = f"exit code {code}; {wrong}"
    if wrong:
        print(words)
    return {
        "name": scenario.name,
        "servers": scenario.servers,
        "wanted": scenario.wanted,
        "wrong": wrong,
        "took_s": round(time.monotonic() - began, 1),
        "matrix": run.matrix if run else "",
        "cells": {
            record.cell: {
                "outcome": record.outcome.value,
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
    parser.add_argument("--duration", type=float, default=3.0, help="seconds a decode cell")
    parser.add_argument("--realtime", action="store_true", help="SCHED_FIFO, on a busy machine")
    parser.add_argument("--out", type=Path, help="where the JSON goes; a full run: noisy.json")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    chosen = [s for s in SCENARIOS if s.name.startswith(tuple((options.only or "").split(",")))]
    began, rows = time.monotonic(), []
    make_project()
    if any(len(scenario.servers) == 1 for scenario in chosen):
        make_profile(options.duration)
        print(f"a profile of {RUNS} runs: {time.monotonic() - began:.0f} s", flush=True)
    for number, scenario in enumerate(chosen, start=1):
        row = judge(scenario, number, options.duration)
        rows.append(row)
        seen = row["wrong"] or "as wanted"
        print(f"{row['name']:30} {row['wanted']:36} {row['took_s']:4.0f} s  {seen}", flush=True)
    failed = sum(bool(row["wrong"]) for row in rows)
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "noise": NOISE,
        "duration_s": options.duration,
        "took_s": round(time.monotonic() - began),
        "rows": rows,
    }
    out = options.out or (RESULTS if len(chosen) == len(SCENARIOS) else BENCH / "noisy.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows) - failed} of {len(rows)} as wanted, {result['took_s']} s, written to {out}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
