"""Whether a server and a run's settings are those a baseline was made with. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.result import RunSettings, ServerInfo

SETTINGS = (
    "method",
    "max_tokens",
    "endpoint",
    "prompts",
    "sampling",
    "extra_body",
    "text_hash",
)
"""Settings that must agree before numbers compare. The duration may differ."""

NO_ENGINE = "openai"
"""What an endpoint is called that does not tell its engine: ``engines.generic``."""

_MACHINE = ("gpu", "cpu", "simulated machine")
"""Facts any of which, seen and the same, vouches for the hardware."""

_WORDS = {
    "gpu": "GPU",
    "cpu": "CPU",
    "gpu_count": "number of GPUs",
    "max_tokens": "output length",
    "extra_body": "extra body",
    "text_hash": "reference text",
}
"""Fields whose names are not words."""

_VENDOR = re.compile(r"^(nvidia|amd|intel)\s+(geforce\s+)?")


@dataclass(frozen=True)
class Fact:
    """One thing compared; None where a side does not say."""

    field: str
    baseline: str | None
    seen: str | None

    def __str__(self) -> str:
        stored, seen = ("unknown" if v is None else v or "none" for v in (self.baseline, self.seen))
        return f"{self.field}: baseline {stored}, here {seen}"


@dataclass(frozen=True)
class Matching:
    """The outcome: what differs, and what could not be checked because one side does not say."""

    mismatches: tuple[Fact, ...]
    unverified: tuple[Fact, ...]
    vouched: bool = True
    """Whether something that was seen, or told, says that this is the baseline's hardware."""

    def explain(self, profile: str) -> str:
        """The usage error for a mismatch, with the next step."""
        facts = "\n".join(f"  {fact}" for fact in self.mismatches)
        return (
            f"this is not what the baseline {profile} was made with:\n{facts}\n"
            "Use the profile of this machine (--hardware), start a new one with a new name and "
            "--update-baselines, or add --llm-allow-mismatch to measure and compare nothing."
        )

    def describe_unverified(self) -> str:
        """What could not be checked, by the side that does not say; empty when all could."""
        parts = []
        for side, what in (
            ([f for f in self.unverified if f.seen is None], "not seen; --llm-run-info tells it"),
            ([f for f in self.unverified if f.seen is not None], "not in the baseline"),
        ):
            if side:
                names = ", ".join(_WORDS.get(fact.field, fact.field) for fact in side)
                parts.append(f"{names} ({what})")
        return "; ".join(parts)


def compare(
    baseline: Baseline,
    server: ServerInfo,
    settings: RunSettings,
    facts: Mapping[str, str | int | float],
) -> Matching:
    """Compare a server and a run's settings with a baseline.

    A model agrees by root, by the id that requests use or by the served name. What either side
    does not say (a GPU over HTTP; the sampling of a report by another tool) is unverified. The
    simulator is a machine as well: the one whose profile it plays.

    Args:
        facts: hardware that was detected, and what ``--llm-run-info`` tells.
    """
    wanted = baseline.match
    engine: str | int | float | None = server.engine
    if engine == NO_ENGINE and wanted.engine != NO_ENGINE:
        engine = facts.get("engine")
    stated = [
        _check("gpu", wanted.gpu, facts.get("gpu"), plain_gpu),
        _check("gpu_count", wanted.gpu_count, facts.get("gpu_count")),
        _check("cpu", wanted.cpu, facts.get("cpu")),
        _check_model((wanted.model, wanted.served_model), (server.model_root, server.model)),
        _check("engine", wanted.engine, engine, str.casefold),
    ]
    checks = [check for check in stated if check[0].baseline is not None]
    if server.plays and not baseline.simulated:
        checks.append(_check("simulated machine", baseline.hardware.profile, server.plays))
    for name in SETTINGS:
        checks.append(_check(name, getattr(baseline.settings, name), getattr(settings, name)))
    return Matching(
        mismatches=tuple(fact for fact, agrees in checks if agrees is False),
        unverified=tuple(fact for fact, agrees in checks if agrees is None),
        vouched=any(agrees for fact, agrees in checks if fact.field in _MACHINE),
    )


def _check(
    field: str,
    stored: str | int | None,
    seen: str | int | float | None,
    plain: Callable[[str], str] = str,
) -> tuple[Fact, bool | None]:
    """The fact, and whether both sides agree; None where one does not say."""
    texts = [None if value is None else str(value) for value in (stored, seen)]
    agrees = None if None in texts else plain(str(stored)) == plain(str(seen))
    return Fact(field, *texts), agrees


def _check_model(
    stored: Iterable[str | None], seen: Iterable[str | None]
) -> tuple[Fact, bool | None]:
    wanted, here = ([name for name in dict.fromkeys(names) if name] for names in (stored, seen))
    fact = Fact("model", " or ".join(wanted) or None, " or ".join(here) or None)
    return fact, bool(set(wanted) & set(here))


def plain_gpu(name: str) -> str:
    """A GPU's name without its vendor, as some tools write it."""
    return _VENDOR.sub("", " ".join(name.casefold().split()))
