"""A decode cell's window in figures: every value that is reported. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_llmperf.engines.base import Gauges
from pytest_llmperf.measure.counting import Counted, Records
from pytest_llmperf.measure.gauges import Edges
from pytest_llmperf.measure.window import (
    Curve,
    Floats,
    Window,
    bin_events,
    bin_tokens,
    measure_window,
)
from pytest_llmperf.model.result import Series, ServerSide
from pytest_llmperf.stats import (
    batch_count,
    batch_mean_error,
    chunk_error,
    confidence_95,
    itl_error,
    median_error,
    trend,
)
from pytest_llmperf.stats.window import Trend

SERIES_BIN_S = 0.5
_TINY = 0.1
"""A gap below this share of the mean gap is no decoding step's: its chunks came in one go."""
_CUT_STEPS = math.sqrt(2 / 12)
"""A counter rises by whole steps: each edge of a window cuts one at random (uniform, in steps)."""
_FINEST_BIN_S = 0.002
_MOST_BINS = 5000


@dataclass(frozen=True)
class Decoded:
    """What was recorded of a decode cell, and what follows from it."""

    concurrency: int
    records: Records
    counted: Counted
    window: Window
    seen: Sequence[Gauges]
    """Scrapes inside the window."""
    edges: Edges | None
    ttfts: tuple[float, ...]
    """Seconds, every request of the cell sent before the window's end that got a token."""
    burst: tuple[float, ...]
    restarts: tuple[float, ...]
    step_s: float | None
    """Mean time between the arrivals of a stream, leaving out what came in one go."""
    tiny_gaps: float
    """Share of gaps too small to be decoding steps."""
    token_error: float | None
    """Relative standard error of the token rate."""
    step_error: float | None
    """The same of the rate of arrivals."""
    batches: int
    drift: Trend | None

    @property
    def streams(self) -> list[list[Curve]]:
        return self.counted.streams

    @property
    def total_tok_s(self) -> float:
        return self.window.tokens / self.window.seconds

    def counted_by_server(self, name: str) -> float | None:
        """How much a server's counter rose: between the window's edges or, where the scrapes there
        took too long to stand for them, between the first and the last scrape inside."""
        edges = self.edges
        if edges is None and len(self.seen) > 1:
            edges = Edges(self.seen[0], self.seen[-1])
        return edges.rose(name) if edges else None

    @property
    def first_chunk_tokens(self) -> float | None:
        """Tokens of a request's first chunk, median; None without a request that had one."""
        curves = [c for stream in self.streams for c in stream if c.stamps.size]
        return float(np.median([c.tokens[0] / c.events[0] for c in curves])) if curves else None

    @property
    def gap_share(self) -> float:
        """Share of the streams' time in the window in which they were not decoding."""
        return 1 - self.window.decoding / self.concurrency


def summarise(
    concurrency: int,
    records: Records,
    counted: Counted,
    t0: float,
    t1: float,
    seen: Sequence[Gauges] = (),
    edges: Edges | None = None,
) -> Decoded:
    """Work out what happened in ``[t0, t1)``, monotonic seconds."""
    window = measure_window(counted.streams, t0, t1)
    burst, restarts = _ttfts(counted.streams, t1)
    tiny, step_s = _steps(window.gaps)
    token_error = step_error = drift = None
    batches = 0
    if step_s is not None:
        seconds = t1 - t0
        bins = int(min(max(seconds / max(step_s, _FINEST_BIN_S), 1), _MOST_BINS))
        edge_times = np.linspace(t0, t1, bins + 1)
        bin_s = seconds / bins
        tokens = bin_tokens(counted.streams, edge_times)
        token_error = _relative_error(tokens, bin_s, step_s)
        if token_error is not None:
            token_error = max(token_error, chunk_error(window.read_tokens, window.read_chunks))
        step_error = _relative_error(bin_events(counted.streams, edge_times), bin_s, step_s)
        batches = batch_count(bins, bin_s, step_s)
        if batches:
            drift = trend(tokens[-(bins // batches * batches) :].reshape(batches, -1).sum(axis=1))
    return Decoded(
        concurrency=concurrency,
        records=records,
        counted=counted,
        window=window,
        seen=seen,
        edges=edges,
        ttfts=burst + restarts,
        burst=burst,
        restarts=restarts,
        step_s=step_s,
        tiny_gaps=tiny,
        token_error=token_error,
        step_error=step_error,
        batches=batches,
        drift=drift,
    )


def figures(cell: Decoded, *, buffered: bool) -> dict[str, Any]:
    """Fields of ``Measurement``. What something buffered, or nobody observed, is left out."""
    window, seconds = cell.window, cell.window.seconds
    total = cell.total_tok_s
    gaps = window.gaps
    steps_s, tokens_per_step = _step_rates(cell.edges)
    fields: dict[str, Any] = {
        "token_source": cell.counted.source,
        "total_tok_s": total,
        "busy_tok_s": _ratio(window.tokens * cell.concurrency, window.decoding * seconds),
        "chunk_gap_p99_ms": float(np.percentile(gaps, 99)) * 1e3 if gaps.size else None,
        "chunks_s": window.chunks / seconds,
        "tokens_per_chunk": _ratio(float(window.read_tokens.sum()), window.chunks),
        "steps_s": steps_s,
        "tokens_per_step": tokens_per_step,
        "in_flight_avg": window.in_flight,
        "decoding_avg": window.decoding,
        "completed": window.completed,
        "output_tokens": round(window.tokens),
        "measured_s": seconds,
        "ttft_n": len(cell.ttfts),
        "server": server_side(cell),
        "series": _series(cell),
    }
    fields["active_avg"] = fields["server"].running_mean
    if fields["active_avg"] is None:
        fields["active_avg"] = window.in_flight
    errors: dict[str, float | None] = {}
    if cell.token_error is not None:
        errors["total_tok_s"] = total * cell.token_error
        low, high = confidence_95(total, total * cell.token_error, cell.batches - 1)
        fields["total_tok_s_ci95"] = (low, high)
    if steps_s is not None and cell.step_error is not None and cell.step_s is not None:
        errors["steps_s"] = steps_s * math.hypot(
            cell.step_error, _CUT_STEPS * cell.step_s / seconds
        )
    if not buffered:
        fields |= _latencies(cell, errors)
    fields["std_errors"] = {name: error for name, error in errors.items() if error is not None}
    return fields


def server_side(cell: Decoded) -> ServerSide:
    """The server's own gauges over the window."""
    running = [g.running for g in cell.seen if g.running is not None]
    waiting = [g.waiting for g in cell.seen if g.waiting is not None]
    kv_use = [g.kv_use for g in cell.seen if g.kv_use is not None]
    edges = cell.edges
    generated = edges.rose("generated_tokens") if edges else None
    names = ("preemptions", "prefix_hits", "prefix_queries")
    preempted, hits, queries = map(cell.counted_by_server, names)
    return ServerSide(
        running_mean=sum(running) / len(running) if running else None,
        waiting_max=max(waiting, default=None),
        kv_use_max=max(kv_use, default=None),
        preemptions=None if preempted is None else round(preempted),
        generated_tokens=generated,
        generated_tok_s=generated / edges.seconds if edges and generated is not None else None,
        prefix_hit_rate=hits / queries if hits is not None and queries else None,
    )


def _latencies(cell: Decoded, errors: dict[str, float | None]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    itls_ms = [itl * 1e3 for itl in cell.window.itls]
    if itls_ms:
        itl_ms = float(np.median(itls_ms))
        rates = [1e3 / itl for itl in itls_ms]
        fields |= {
            "itl_ms": itl_ms,
            "itl_few": cell.window.itl_few,
            "itl_p99_ms": float(np.percentile(itls_ms, 99)),
            "itls_ms": itls_ms,
            "per_request_tok_s": float(np.median(rates)),
        }
        errors["itl_ms"] = itl_error(itl_ms, itls_ms, cell.token_error)
        errors["per_request_tok_s"] = itl_error(
            fields["per_request_tok_s"], rates, cell.token_error
        )
    if cell.ttfts:
        ttfts_ms = [ttft * 1e3 for ttft in cell.ttfts]
        fields |= {
            "ttft_ms": float(np.median(ttfts_ms)),
            "ttft_p90_ms": float(np.percentile(ttfts_ms, 90)),
            "ttft_p99_ms": float(np.percentile(ttfts_ms, 99)),
            "ttft_burst_ms": float(np.median(cell.burst)) * 1e3 if cell.burst else None,
            "ttft_restart_ms": float(np.median(cell.restarts)) * 1e3 if cell.restarts else None,
            "ttfts_ms": ttfts_ms,
        }
        errors["ttft_ms"] = median_error(ttfts_ms)
    return fields


def _ttfts(
    streams: Sequence[Sequence[Curve]], t1: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds to the first token: of the opening burst, and of restarts."""
    burst = [s[0].first - s[0].sent for s in streams if s and s[0].stamps.size]
    restarts = [c.first - c.sent for s in streams for c in s[1:] if c.stamps.size and c.sent < t1]
    return tuple(burst), tuple(restarts)


def _steps(gaps: Floats) -> tuple[float, float | None]:
    """Share of tiny gaps, and the mean of the others in seconds."""
    if not gaps.size or not gaps.any():
        return (1.0 if gaps.size else 0.0), None
    tiny = gaps < _TINY * gaps.mean()
    return float(tiny.mean()), float(gaps[~tiny].mean())


def _relative_error(per_bin: Floats, bin_s: float, step_s: float) -> float | None:
    error, rate = batch_mean_error(per_bin, bin_s, step_s), per_bin.mean() / bin_s
    return float(error / rate) if error is not None and rate > 0 else None


def _step_rates(edges: Edges | None) -> tuple[float | None, float | None]:
    """Sequence-steps per second over all streams, and tokens per step."""
    steps = edges.rose("steps") if edges else None
    if not edges or not steps:
        return None, None
    accepted = edges.rose("accepted")
    return steps / edges.seconds, None if accepted is None else accepted / steps + 1


def _series(cell: Decoded) -> Series:
    window = cell.window
    bins = max(1, round(window.seconds / SERIES_BIN_S))
    tokens = bin_tokens(cell.streams, np.linspace(window.t0, window.t1, bins + 1))
    return Series(bin_s=window.seconds / bins, tokens=[round(float(t), 3) for t in tokens])


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None
