"""The worlds of ``benchmarks.noisy`` are what their names say, without running them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from benchmarks.worlds import FIRST_ONLY, NONE_OF_THREE, ONE_OF_FIVE, RUNS, Case, list_cases
from pytest_llmperf.sim import parse_spec
from pytest_llmperf.sim.noise import Start

CASES = list_cases()


def slow_starts(spec: str, count: int) -> tuple[bool, ...]:
    """Which of the first starts come up slow."""
    noise = replace(parse_spec(spec), noise_cell=())
    starts = (Start(replace(noise, start=number)) for number in range(1, count + 1))
    return tuple(start.speed("decode", 1, 1, 0.0) < 1 for start in starts)


def by_world() -> dict[str, list[Case]]:
    worlds = defaultdict(list)
    for case in CASES:
        worlds[case.world.name].append(case)
    return worlds


def test_cases_are_told_apart_by_name_and_worlds_by_profile() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({case.world.profile for case in CASES}) == len(by_world())


def test_each_world_has_a_run_that_must_pass_and_one_that_must_fail() -> None:
    for cases in by_world().values():
        assert {case.exit_code for case in cases} == {0, 1}


def test_no_judged_run_draws_as_the_profile_or_another_case_of_one_build() -> None:
    for cases in by_world().values():
        seeds = [
            parse_spec(spec).seed
            for case in cases
            for spec in (*case.servers, *filter(None, [case.against]))
        ]
        assert len(set(seeds)) == len(seeds)
        assert cases[0].world.baseline_seed not in seeds


def test_what_follows_a_case_in_its_world_meets_the_profile_as_it_was_measured() -> None:
    for cases in by_world().values():
        assert not [case for case in cases[:-1] if "--update-baselines" in case.options]


def test_where_starts_may_be_slow_one_is_in_the_profile_and_one_is_judged() -> None:
    """Else the case would say nothing about further starts."""
    for name in ("one start in ten 4 % slow", "one start in four 20 % slow"):
        same, *_ = cases = by_world()[name]
        world = same.world
        assert slow_starts(world.server(world.baseline_seed), RUNS) == ONE_OF_FIVE
        assert slow_starts(same.servers[0], 3) == FIRST_ONLY
        assert slow_starts(cases[-1].servers[0], 3) == NONE_OF_THREE
