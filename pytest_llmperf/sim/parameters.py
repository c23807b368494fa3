"""What a simulator spec says: ``sim``, ``sim:<profile>``, ``sim:<profile>?speed=0.9&seed=7``.

Light to import: the plugin reads a spec before it starts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.sim.faults import Fault, parse_fault
from pytest_llmperf.sim.noise import (
    Drift,
    IdleFall,
    Noise,
    SlowStart,
    Throttle,
    read_spread,
    read_tails,
    reader,
)
from pytest_llmperf.sim.values import (
    InBand,
    read_bands,
    read_count,
    read_flag,
    read_not_negative,
    read_positive,
    read_text,
)

SCHEME = "sim"
DEFAULT_PROFILE = "rtxpro6k_x4"


@dataclass(frozen=True)
class Variation(Noise):
    """How one run of the engine differs from its profile; the defaults change nothing.

    What each field means: ``PARAMETERS``.
    """

    speed: float = 1.0
    decode_speed: float = 1.0
    prefill_speed: float = 1.0
    slow_ctx: tuple[InBand, ...] = ()
    slow_conc: tuple[InBand, ...] = ()
    acceptance: float = 1.0
    kv_tokens: int | None = None
    slots: int | None = None
    max_model_len: int | None = None
    prefix_cache: bool = True


@dataclass(frozen=True)
class SimParameters(Variation):
    """Everything a spec can say. None leaves it to the profile."""

    profile: str | None = None
    engine: Literal["vllm", "llamacpp"] = "vllm"
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    unified: bool = True
    stream_interval: int = 1
    queue_limit: int | None = None
    ping: float = 30.0
    loading: float = 0.0
    truth: str | None = None
    fault: tuple[Fault, ...] = ()


def is_spec(url: str) -> bool:
    """Whether a ``--llm-url`` asks for the simulator."""
    return url == SCHEME or url.startswith((f"{SCHEME}:", f"{SCHEME}?"))


def parse_spec(spec: str) -> SimParameters:
    """Read a spec.

    Raises:
        ConfigError: names the parameter and what it takes, or the parameters there are.
    """
    if not is_spec(spec):
        raise ConfigError(f"{spec!r} is no simulator; write sim, sim:<profile> or sim:<profile>?…")
    head, _, query = spec.partition("?")
    return parse_parameters(split_query(query), head.partition(":")[2] or None)


def split_query(query: str) -> list[tuple[str, str]]:
    """``a=1&b=2`` as pairs. Not parse_qsl: it reads the "+" of slow_conc=16+:0.9 as a space."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    return [(key, unquote(value)) for key, _, value in pairs]


def with_start(spec: str, number: int) -> str:
    """The spec at its start of that number, counted from the one it names: what differs from start
    to start is drawn anew."""
    if number == 1:
        return spec
    head, _, query = spec.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("start=")]
    return f"{head}?{'&'.join([*kept, f'start={parse_spec(spec).start + number - 1}'])}"


def parse_parameters(pairs: list[tuple[str, str]], profile: str | None = None) -> SimParameters:
    """Parameters as name and text.

    Raises:
        ConfigError: as `parse_spec`.
    """
    values: dict[str, Any] = {}
    for key, text in pairs:
        if key not in PARAMETERS:
            raise ConfigError(
                f"the simulator has no parameter {key!r}; there are {', '.join(sorted(PARAMETERS))}"
            )
        try:
            value = PARAMETERS[key].read(text)
        except ValueError as exc:
            raise ConfigError(f"simulator parameter {key}={text}: {exc}") from None
        if isinstance(value, tuple):
            value = values.get(key, ()) + value
        elif key in values:
            raise ConfigError(f"simulator parameter {key} is given twice")
        values[key] = value
    return SimParameters(profile=profile, **values)


def _engine(text: str) -> str:
    if text not in ("vllm", "llamacpp"):
        raise ValueError("there are vllm and llamacpp")
    return text


@dataclass(frozen=True)
class Parameter:
    """How a parameter is read (a ValueError says what it takes), and what it does, for people."""

    read: Callable[[str], Any]
    text: str


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "engine": Parameter(_engine, "whose habits on the wire: vllm (default) or llamacpp"),
        "model": Parameter(read_text, "served name"),
        "api_key": Parameter(read_text, "key that is required of clients"),
        "seed": Parameter(int, "another seed is another session"),
        "start": Parameter(
            read_count, "number of the server start within it, 1 by default; each draws anew"
        ),
        "speed": Parameter(read_positive, "factor on the speed of everything; 0.9 is 10 % slower"),
        "decode_speed": Parameter(read_positive, "factor on that of decode alone"),
        "prefill_speed": Parameter(read_positive, "factor on that of prefill alone"),
        "slow_ctx": Parameter(
            read_bands, "factor on decode at some contexts: 32K:0.9, or from 32K on, 32K+:0.9"
        ),
        "slow_conc": Parameter(read_bands, "the same by the requests that decode at once: 16+:0.9"),
        "noise": Parameter(
            read_not_negative,
            "standard deviation between starts, as a fraction of the speed of decode, of prefill "
            "and of the host, each by itself",
        ),
        "noise_run": Parameter(read_not_negative, "the same, of one factor on everything"),
        "noise_conc": Parameter(
            read_spread,
            "the same, of a factor for each concurrency: 0.02, or by concurrency, 1:0.1,4+:0.01",
        ),
        "noise_cell": Parameter(
            read_spread,
            "the same, for each context and concurrency, and decode, prefill and host by itself",
        ),
        "noise_tails": Parameter(
            read_tails,
            "how these four are distributed: normal (default), or t3, Student's t of 3 degrees of "
            "freedom",
        ),
        "slow_start": Parameter(
            reader(SlowStart, "share", "fraction"),
            "SHARE:FRACTION of starts is slower; 0.1:0.04, one in ten by 4 %",
        ),
        "drift": Parameter(
            reader(Drift, "fraction", "seconds"),
            "FRACTION:SECONDS, how far speed drifts up or down after the start, as a standard "
            "deviation, and in what time; it stays there",
        ),
        "idle_fall": Parameter(
            reader(IdleFall, "fraction", "idle", "seconds"),
            "FRACTION:IDLE:SECONDS, slower for so long after so many seconds without a request; "
            "0.4:90:30",
        ),
        "throttle": Parameter(
            reader(Throttle, "share", "fraction", "seconds"),
            "SHARE:FRACTION:SECONDS, a share of all slices of so many seconds is slower; 0.1:0.2:5",
        ),
        "acceptance": Parameter(read_positive, "factor on the draft tokens accepted per step"),
        "acceptance_spread": Parameter(
            read_not_negative,
            "standard deviation of these between requests, as a fraction; steps/s stay",
        ),
        "kv_tokens": Parameter(read_count, "size of the KV cache, in tokens"),
        "slots": Parameter(read_count, "requests that decode at once, at most"),
        "max_model_len": Parameter(read_count, "longest context"),
        "unified": Parameter(
            read_flag, "llama.cpp: 1, the slots share the KV cache (default); 0, each has its part"
        ),
        "prefix_cache": Parameter(
            read_flag, "0: no prompt is found in it again, though the server says that it caches"
        ),
        "stream_interval": Parameter(read_count, "tokens per chunk after the first, at least"),
        "queue_limit": Parameter(
            read_count, "vLLM: requests beyond so many waiting ones are refused inside a 200 stream"
        ),
        "ping": Parameter(
            read_not_negative, "llama.cpp: seconds of silence before a keep-alive comment; 0 never"
        ),
        "loading": Parameter(
            read_not_negative, "seconds after the start during which everything answers 503"
        ),
        "truth": Parameter(
            read_text, "file that gets what really happened, a JSON line per request"
        ),
        "fault": Parameter(
            lambda text: (parse_fault(text),), "something that goes wrong: KIND[:VALUE][@WHEN]"
        ),
    }
)
"""What a spec may say. ``fault``, and what holds in bands, may be repeated."""
