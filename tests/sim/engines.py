"""A small engine with round numbers, for tests that compute by hand."""

from __future__ import annotations

from typing import Any

from pytest_llmperf.sim.cost import HostCost, PrefillCost, StepCost, Surface
from pytest_llmperf.sim.profile import EngineModel
from pytest_llmperf.sim.scheduler import Scheduler, SimRequest, Step

STEP_S = 0.01
HOST_S = 0.1
PREFILL_TOK_S = 10_000


def flat(value: float) -> Surface:
    """The same everywhere."""
    return Surface.through([1], [1], [[value]])


def small_engine(**changes: Any) -> EngineModel:
    """10 ms a step, 0.1 s of host work, 10,000 tok/s of prefill, one token per step, 40 blocks."""
    values: dict[str, Any] = {
        "name": "small",
        "max_model_len": 512,
        "kv_tokens": 41 * 16,
        "step": StepCost(flat(STEP_S), 1024, 1 << 20, 0.0, 0.0),
        "prefill": PrefillCost((0.0, 10_000.0), (0.0, 10_000 / PREFILL_TOK_S)),
        "host": HostCost((1.0,), (1.0,), ((HOST_S,),)),
        "tokens_per_step": flat(1.0),
    }
    return EngineModel(**(values | changes))


def request(name: str, prompt: int = 160, max_tokens: int = 16, text: int = 0) -> SimRequest:
    """A request of ``prompt`` tokens; equal ``text`` is an equal prompt."""
    return SimRequest(name, prompt, range(text * 1000, text * 1000 + prompt // 16), max_tokens)


def steps(scheduler: Scheduler, now: float = 0.0) -> list[tuple[float, Step]]:
    """Run until idle: each step with the time it ends."""
    done = []
    while (step := scheduler.step(now)) is not None:
        now += step.duration_s
        done.append((now, step))
        assert len(done) < 100_000, "the scheduler does not come to an end"
    return done
