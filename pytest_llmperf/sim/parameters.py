"""What a simulator spec says: ``sim``, ``sim:<profile>``, ``sim:<profile>?speed=0.9&seed=7``.

Light to import: the plugin reads a spec before it starts anything.

Faults are written ``fault=KIND[:VALUE][@WHEN[,WHEN]]`` and may be repeated. WHEN is
``request:2`` (the second completion request; also ``2+`` and ``2-5``), ``token:50`` (once the
request has made 50 tokens), ``total:5000`` (once the server has) or ``time:3`` (seconds after the
server came up). Several must all hold; without any the fault always holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import parse_tokens

SCHEME = "sim"
DEFAULT_PROFILE = "rtxpro6k_x4"

FaultKind = Literal[
    "crash", "hang", "stall", "http", "error", "truncate", "stop", "hold", "buffer",
    "no_usage", "wrong_usage", "zombie", "no_metrics", "no_gauges", "wrong_gauges",
]  # fmt: skip

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "crash": "the process exits at once",
        "hang": "the process stops answering anything, connections stay open",
        "stall": "VALUE seconds without a step",
        "http": "requests are refused with status VALUE (429, 500, 503)",
        "error": "an error object in the stream, status 200",
        "truncate": "the connection is cut in mid-stream",
        "stop": "the request ends early with finish_reason stop",
        "hold": "tokens come in chunks of VALUE, or (without) all at the end",
        "buffer": "a proxy that passes on VALUE bytes at a time, or (without) all at the end",
        "no_usage": "usage is never sent",
        "wrong_usage": "usage counts are multiplied by VALUE",
        "zombie": "generation goes on after the client has gone",
        "no_metrics": "/metrics answers 404",
        "no_gauges": "/metrics lacks the gauges and counters of requests and KV",
        "wrong_gauges": "gauges and counters are multiplied by VALUE",
    }
)
"""Kind -> what happens."""

_NEEDS_VALUE = {"stall", "http", "wrong_usage", "wrong_gauges"}
_TAKES_VALUE = _NEEDS_VALUE | {"hold", "buffer"}
# hooks that these happen at know no request or no token
_WHEN = {
    "http": {"request", "time", "total"},
    "buffer": {"request"},
    "hold": {"request"},
    "no_usage": {"request"},
    "wrong_usage": {"request"},
    "zombie": {"request"},
    "no_metrics": {"time", "total"},
    "no_gauges": {"time", "total"},
    "wrong_gauges": {"time", "total"},
}
_ANY_WHEN = {"request", "token", "total", "time"}


@dataclass(frozen=True)
class Band:
    """Values from ``low`` up to but not including ``high``."""

    low: float
    high: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value < self.high


@dataclass(frozen=True)
class Slow:
    """A factor on speed in a band of contexts (tokens) or concurrencies; 0.9 is 10 % slower."""

    band: Band
    factor: float


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and when; a limit that is None always holds."""

    kind: FaultKind
    value: float | None = None
    requests: Band | None = None
    token: int | None = None
    total: int | None = None
    time: float | None = None


@dataclass(frozen=True)
class Variation:
    """How one run of the engine differs from its profile; the defaults change nothing.

    What each field means: ``PARAMETERS``.
    """

    seed: int = 0
    speed: float = 1.0
    decode_speed: float = 1.0
    prefill_speed: float = 1.0
    slow_ctx: tuple[Slow, ...] = ()
    slow_conc: tuple[Slow, ...] = ()
    noise: float = 0.0
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


def with_seed(spec: str, more: int) -> str:
    """The spec with a seed so much higher: another run, with a draw of its own of the noise."""
    if not more:
        return spec
    head, _, query = spec.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("seed=")]
    return f"{head}?{'&'.join([*kept, f'seed={parse_spec(spec).seed + more}'])}"


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


def parse_fault(text: str) -> Fault:
    """Read ``KIND[:VALUE][@WHEN[,WHEN]]``.

    Raises:
        ValueError: says what is wrong and what there is.
    """
    what, _, when = text.partition("@")
    kind, _, value = what.partition(":")
    if kind not in FAULTS:
        raise ValueError(f"no fault {kind!r}; there are {', '.join(FAULTS)}")
    if (not value and kind in _NEEDS_VALUE) or (value and kind not in _TAKES_VALUE):
        raise ValueError(f"{kind} takes {'a' if kind in _NEEDS_VALUE else 'no'} value")
    limits: dict[str, Any] = {}
    for part in filter(None, when.split(",")):
        name, _, limit = part.partition(":")
        allowed = _WHEN.get(kind, _ANY_WHEN)
        if name not in allowed:
            raise ValueError(f"{kind} happens at {', '.join(sorted(allowed))}, not at {part!r}")
        if name == "request":
            limits["requests"] = _requests(limit)
        else:
            limits[name] = _positive(limit) if name == "time" else _count(limit)
    number = _positive(value) if value else None
    if kind == "http" and number not in (429, 500, 503):
        raise ValueError("http refuses with 429, 500 or 503")
    return Fault(kind, number, **limits)  # type: ignore[arg-type]


def _positive(text: str) -> float:
    number = float(text)
    if not (0 < number < math.inf):
        raise ValueError("a number above 0 is wanted")
    return number


def _not_negative(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _positive(text)


def _count(text: str) -> int:
    number = parse_tokens(text)
    if number < 1:
        raise ValueError("a count of at least 1 is wanted")
    return number


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1 is wanted")
    return text == "1"


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _engine(text: str) -> str:
    if text not in ("vllm", "llamacpp"):
        raise ValueError("there are vllm and llamacpp")
    return text


def _requests(text: str) -> Band:
    low, plus, high = (text[:-1], "+", "") if text.endswith("+") else text.partition("-")
    return Band(_count(low), math.inf if plus == "+" else _count(high or low) + 1)


def _slow(text: str) -> tuple[Slow, ...]:
    slows = []
    for part in text.split(","):
        values, _, factor = part.partition(":")
        if values.endswith("+"):
            band = Band(parse_tokens(values[:-1]) / math.sqrt(2))
        else:
            # half an octave either side: a context grows by the tokens generated
            centre = _count(values)
            band = Band(centre / math.sqrt(2), centre * math.sqrt(2))
        slows.append(Slow(band, _positive(factor)))
    return tuple(slows)


@dataclass(frozen=True)
class Parameter:
    """How a parameter is read (a ValueError says what it takes), and what it does, for people."""

    read: Callable[[str], Any]
    text: str


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "engine": Parameter(_engine, "whose habits on the wire: vllm (default) or llamacpp"),
        "model": Parameter(_text, "served name"),
        "api_key": Parameter(_text, "key that is required of clients"),
        "seed": Parameter(int, "another seed is another run"),
        "speed": Parameter(_positive, "factor on the speed of everything; 0.9 is 10 % slower"),
        "decode_speed": Parameter(_positive, "factor on that of decode alone"),
        "prefill_speed": Parameter(_positive, "factor on that of prefill alone"),
        "slow_ctx": Parameter(
            _slow, "factor on decode at some contexts: 32K:0.9, or from 32K on, 32K+:0.9"
        ),
        "slow_conc": Parameter(_slow, "the same by the requests that decode at once: 16+:0.9"),
        "noise": Parameter(
            _not_negative, "standard deviation of speed between runs (seeds), as a fraction"
        ),
        "acceptance": Parameter(_positive, "factor on the draft tokens accepted per step"),
        "kv_tokens": Parameter(_count, "size of the KV cache, in tokens"),
        "slots": Parameter(_count, "requests that decode at once, at most"),
        "max_model_len": Parameter(_count, "longest context"),
        "unified": Parameter(
            _flag, "llama.cpp: 1, the slots share the KV cache (default); 0, each has its part"
        ),
        "prefix_cache": Parameter(_flag, "0 switches the prefix cache off"),
        "stream_interval": Parameter(_count, "tokens per chunk after the first, at least"),
        "queue_limit": Parameter(
            _count, "vLLM: requests beyond so many waiting ones are refused inside a 200 stream"
        ),
        "ping": Parameter(
            _not_negative, "llama.cpp: seconds of silence before a keep-alive comment; 0 never"
        ),
        "loading": Parameter(
            _not_negative, "seconds after the start during which everything answers 503"
        ),
        "truth": Parameter(_text, "file that gets what really happened, a JSON line per request"),
        "fault": Parameter(
            lambda text: (parse_fault(text),), "something that goes wrong: KIND[:VALUE][@WHEN]"
        ),
    }
)
"""What a spec may say. ``slow_ctx``, ``slow_conc`` and ``fault`` may be repeated."""
