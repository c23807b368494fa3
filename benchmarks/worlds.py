"""The worlds of ``noisy``: kinds of noise that servers show, and what must be said in each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import CellRecord, Outcome, RunResult
from pytest_llmperf.sim.noise import Noise, SlowStart, Start

RUNS = 5
"""Of a profile."""
ENGINE, ACCEPTANCE = "the engine got slower", "fewer draft tokens are accepted"

PLAIN, SPECULATIVE = "h200nvl_x2?speed=8", "rtxpro6k_x4?speed=4"
"""Two machines: one without speculative decoding, one with."""
PLAIN_GRID = ("--llm-contexts=8K", "--llm-concurrency=4,16")
SPECULATIVE_GRID = ("--llm-contexts=8K", "--llm-concurrency=4,16,64")
KV_TOKENS = 1_441_792
PAUSED = "decode[8K-c4]"
"""The cell that a case may leave the server alone before."""

Check = Callable[[RunResult], str]
"""What is wrong with the results, or empty."""
Changes = Mapping[str, object]
NONE: Changes = MappingProxyType({})


@dataclass(frozen=True)
class World:
    """A kind of noise, and the machine that has it."""

    name: str
    noise: Changes
    """Parameters of the simulator."""
    machine: str = PLAIN
    grid: tuple[str, ...] = PLAIN_GRID
    baseline_seed: int = 1

    @property
    def profile(self) -> str:
        """Where its baseline is."""
        return re.sub(r"\W+", "_", self.name).strip("_").lower()

    def server(self, seed: int, changes: Changes = NONE) -> str:
        """A simulated server of this world."""
        parameters = {**self.noise, "seed": seed, **changes}
        return "&".join(
            [f"sim:{self.machine}", *(f"{name}={value}" for name, value in parameters.items())]
        )


@dataclass(frozen=True)
class Case:
    """Runs in a world, and what the last one must say. They are made in turn, until one fails."""

    world: World
    change: str
    servers: tuple[str, ...]
    wanted: str
    check: Check
    exit_code: int = 1
    options: tuple[str, ...] = ()
    against: str = ""
    pause_s: float = 0.0
    """How long the server is left alone before ``PAUSED``."""

    @property
    def name(self) -> str:
        return f"{self.world.name}: {self.change}"

    @property
    def arguments(self) -> list[str]:
        """Of pytest, without the server."""
        other, profile = f"--llm-against={self.against}", f"--hardware={self.world.profile}"
        return [other if self.against else profile, *self.world.grid, *self.options]


def seed_whose_starts(slow_start: SlowStart, slow: Sequence[bool], first: int) -> int:
    """The first seed, from ``first`` on, of which exactly those starts come up slow."""

    def is_slow(seed: int, number: int) -> bool:
        noise = Noise(seed=seed, start=number, slow_start=slow_start)
        return Start(noise).speed("decode", 1, 1, 0.0) < 1

    return next(
        seed
        for seed in itertools.count(first)
        if [is_slow(seed, number) for number, _ in enumerate(slow, start=1)] == list(slow)
    )


# What the results must say


def nothing(run: RunResult) -> str:
    """Nothing is called worse."""
    found = " ".join(finding.text for finding in run.findings)
    return _tell("failed", [r for r in run.cells if r.failed]) or run.matrix or found


def worse(run: RunResult) -> str:
    """Speed is called worse, of a cell or of the matrix."""
    regressed = any(r.outcome is Outcome.REGRESSED for r in run.cells)
    return "" if regressed or run.matrix else "nothing is called worse"


def refused(run: RunResult) -> str:
    """Speed is called worse, or is not added to the baseline because it is."""
    return "" if "worse than their baseline" in run.not_updated else worse(run)


def high_concurrency(run: RunResult) -> str:
    """Exactly the decode cells from 16 requests on, by a slower engine."""
    slow = {r.cell for r in run.cells if Cell.parse(r.cell).concurrency >= 16}
    wrong = [r for r in run.cells if (r.outcome is Outcome.REGRESSED) != (r.cell in slow)]
    return _tell("not so", wrong) or _named(run, ENGINE)


def fewer_accepted(run: RunResult) -> str:
    """The acceptance is named, not the engine."""
    steps = [
        r for r in run.cells for c in r.comparisons if (c.metric, c.verdict) == ("steps_s", "worse")
    ]
    return _tell("steps/s worse", steps) or _named(run, ACCEPTANCE)


def names(*words: str) -> Check:
    """It says one of these, where it says what failed."""

    def check(run: RunResult) -> str:
        failed = [r.message for r in run.cells if r.failed]
        said = " ".join([run.matrix, *(f.text for f in run.findings), *failed]).lower()
        return "" if any(word in said for word in words) else f"{words[0]!r} is not named"

    return check


def _named(run: RunResult, cause: str) -> str:
    failed = [r for r in run.cells if r.failed and r.cell.startswith("decode")]
    if not failed:
        return "" if cause in run.matrix else "no decode cell failed"
    return _tell(f"not {cause!r}", [r for r in failed if cause not in r.message])


def _tell(what: str, records: Sequence[CellRecord]) -> str:
    return f"{what}: {', '.join(f'{r.cell} {r.outcome.value}' for r in records)}" if records else ""


# The worlds, and what is judged in each


RARE, OFTEN = SlowStart(0.1, 0.04), SlowStart(0.25, 0.2)
ONE_OF_FIVE = (False, False, True, False, False)
FIRST_ONLY, NONE_OF_THREE = (True, False, False), (False, False, False)


def same(world: World, *seeds: int, **more: Any) -> tuple[Case, ...]:
    """Runs of the same build."""
    return tuple(
        Case(world, f"unchanged, seed {seed}", (world.server(seed),), "passes", nothing, 0, **more)
        for seed in seeds
    )


def slower(world: World, seed: int, speed: float, **more: Any) -> Case:
    """A run of a build whose decode is so fast."""
    servers = (world.server(seed, {"decode_speed": speed}),)
    return Case(world, f"decode x {speed:g}", servers, "fails", worse, **more)


def list_cases() -> tuple[Case, ...]:
    """All there are, world by world."""
    plain = World("1 % of each", {"noise": 0.01}, SPECULATIVE, SPECULATIVE_GRID)
    shared = World("shared by a run", {"noise_run": 0.015})
    by_concurrency = World("by concurrency", {"noise_conc": 0.01})
    by_cell = World("by cell", {"noise_cell": 0.01})
    tails = World("t3", {"noise_cell": 0.01, "noise_tails": "t3"})
    rare = World(
        "one start in ten 4 % slow",
        {"noise_cell": 0.005, "slow_start": "0.1:0.04"},
        baseline_seed=seed_whose_starts(RARE, ONE_OF_FIVE, 1),
    )
    often = World(
        "one start in four 20 % slow",
        {"noise_cell": 0.005, "slow_start": "0.25:0.2"},
        baseline_seed=seed_whose_starts(OFTEN, ONE_OF_FIVE, 1),
    )
    drift = World("drift", {"noise_cell": 0.005, "drift": "0.01:15"})
    idle = World("fall after idling", {"noise_cell": 0.005, "idle_fall": "0.4:6:10"})
    throttle = World("throttling", {"noise_cell": 0.005, "throttle": "0.05:0.08:2"})
    texts = World(
        "texts", {"noise": 0.005, "acceptance_spread": 0.15}, SPECULATIVE, SPECULATIVE_GRID
    )
    releases = tuple(
        by_cell.server(43 + number, {"decode_speed": round(0.99**number, 4)})
        for number in range(1, 9)
    )
    pairs = World("A/B", {"throttle": "0.05:0.05:2"})
    return (
        *same(plain, 11, 12),
        Case(plain, "decode 10 % slower from 16 on", (plain.server(13, {"slow_conc": "16+:0.9"}),),
             "fails there only, names the engine", high_concurrency),
        Case(plain, "acceptance x 0.6", (plain.server(14, {"acceptance": 0.6}),),
             "fails, names the acceptance", fewer_accepted),
        Case(plain, "broken prefix cache", (plain.server(15, {"prefix_cache": 0}),),
             "fails, names the cache", names("prefix cache", "not warm", "cold")),
        Case(plain, "a buffer on the way", (plain.server(16, {"fault": "buffer:8192"}),),
             "fails, says buffered", names("buffered")),
        Case(plain, "KV cache 10 % smaller",
             (plain.server(17, {"kv_tokens": KV_TOKENS * 9 // 10}),),
             "fails, names the KV cache", names("kv cache")),
        *same(shared, 21),
        slower(shared, 22, 0.88),
        *same(by_concurrency, 31),
        slower(by_concurrency, 32, 0.9),
        *same(by_cell, 41, 42),
        slower(by_cell, 43, 0.9),
        # the last of its world: it adds runs to the profile
        Case(by_cell, "1 % slower a release, added",
             releases, "fails", refused, options=("--update-baselines", "--llm-update-mode=add")),
        *same(tails, 51, 52),
        slower(tails, 53, 0.85),
        *same(rare, seed_whose_starts(RARE, FIRST_ONLY, 61), 62),
        slower(rare, seed_whose_starts(RARE, NONE_OF_THREE, 64), 0.85),
        *same(often, seed_whose_starts(OFTEN, FIRST_ONLY, 71), 72),
        slower(often, seed_whose_starts(OFTEN, NONE_OF_THREE, 74), 0.6),
        *same(drift, 81),
        slower(drift, 82, 0.88),
        *same(idle, 91, pause_s=8.0),
        slower(idle, 92, 0.9, pause_s=8.0),
        *same(throttle, 101),
        slower(throttle, 102, 0.85),
        *same(texts, 111, 112),
        # where prompts differ by 15 % a loss of 10 % cannot be told from another prompt
        Case(texts, "acceptance x 0.6", (texts.server(113, {"acceptance": 0.6}),),
             "fails, names the acceptance", fewer_accepted),
        Case(pairs, "one build", (pairs.server(131),), "passes", nothing, 0,
             against=pairs.server(132)),
        Case(pairs, "3 % slower", (pairs.server(133, {"decode_speed": 0.97}),), "fails", worse,
             against=pairs.server(134)),
    )  # fmt: skip
