"""From a profile's tables to an engine that behaves like them.

What a report cannot say is assumed, openly: three tokens per step under speculative decoding
(`TYPICAL_YIELD`), and how the front end shares its time (`_fit_front_end`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pytest_llmperf.baseline.file import load
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.grid import Cell
from pytest_llmperf.sim.cost import FrontEnd, PrefillCost, StepCost, Surface
from pytest_llmperf.sim.profile import (
    Correction,
    DecodeRow,
    EngineModel,
    ProfileTables,
)

TYPICAL_YIELD = 3.0
"""Tokens of a speculative step where the profile has no step counters."""
SETTLE_S = 2.0
"""What the measuring client waits before its window."""
TTFT_TOLERANCE = 0.05
"""A modelled TTFT further from the report than this is corrected."""

Rows = list[list[float]]


def load_engine(path: Path) -> EngineModel:
    """The engine of a baseline file.

    Raises:
        ConfigError: when the file is no baseline, or holds too little to make an engine of.
    """
    return calibrate(ProfileTables.from_baseline(load(path)))


def calibrate(tables: ProfileTables) -> EngineModel:
    """Fit the engine to a profile.

    Raises:
        ConfigError: without a valid decode cell and a prefill row.
    """
    if not tables.decode or not tables.prefill:
        raise ConfigError(
            f"profile {tables.name} cannot be simulated: it needs a valid decode cell and a "
            "prefill row; measure them, or name another profile"
        )
    contexts = sorted({context for context, _ in tables.decode})
    streams = sorted({streams for _, streams in tables.decode})
    itl = _complete(
        [[_steady_itl(tables, c, n) for n in streams] for c in contexts],
    )
    steps, yields = _split(tables, contexts, streams, itl)
    step = _step_cost(contexts, streams, steps)
    front_end, corrections = _fit_front_end(tables, contexts, step)
    max_model_len = tables.max_model_len or max(
        *(context + tables.max_tokens + 1024 for context in contexts), *tables.prefill
    )
    return EngineModel(
        name=tables.name,
        max_model_len=max_model_len,
        kv_tokens=_kv_tokens(tables, max_model_len),
        step=step,
        prefill=_prefill_cost(tables, front_end, max_model_len),
        front_end=front_end,
        tokens_per_step=Surface.through(streams, contexts, yields),
        draft_tokens=tables.draft_tokens,
        corrections=tuple(corrections),
    )


def _kv_tokens(tables: ProfileTables, max_model_len: int) -> int:
    """The middle of what the cells leave open: the largest that fitted needs no more, the
    smallest that did not needs more (``needed = C x (context + max_tokens)``)."""
    if tables.kv_tokens:
        return tables.kv_tokens
    least = max(n * (c + tables.max_tokens) for c, n in tables.decode)
    most = min(
        (n * (c + tables.max_tokens) for c, n in tables.over_capacity), default=2 * least
    )  # fmt: skip
    return max((least + most) // 2, max_model_len + EngineModel.block_size)


# Decode: time between tokens, and its two factors


def _steady_itl(tables: ProfileTables, context: int, streams: int) -> float | None:
    """Seconds between tokens of a stream that give the cell's total tok/s.

    Total tok/s includes the gaps of streams that restart inside the window: one that ends after
    ``max_tokens`` and waits a TTFT for its next first token.
    """
    row = tables.decode.get((context, streams))
    if row is None:
        return None
    gap = row.ttft_ms / 1000
    opens, closes = SETTLE_S, SETTLE_S + tables.duration_s
    itl = streams / row.total_tok_s
    for _ in range(8):
        idle, ends = 0.0, tables.max_tokens * itl
        while ends < closes:
            idle += max(0.0, min(ends + gap, closes) - max(ends, opens))
            ends += gap + tables.max_tokens * itl
        itl = streams / row.total_tok_s * (1 - idle / tables.duration_s)
    return itl


def _complete(rows: list[list[float | None]]) -> Rows:
    """Fill the cells that were over capacity: as more streams slow the nearest context that has
    them."""
    full: Rows = [[] for _ in rows]
    for i in range(len(rows[0])):
        for j, row in enumerate(rows):
            value = row[i]
            if value is None:
                near = min(
                    (k for k in range(len(rows)) if rows[k][i] is not None),
                    key=lambda k: abs(k - j),
                )
                value = rows[near][i]
                assert value is not None
                before = rows[near][i - 1] if i else None
                if before is not None:
                    value = full[j][i - 1] * value / before
            full[j].append(value)
    return full


def _split(
    tables: ProfileTables, contexts: Sequence[int], streams: Sequence[int], itl: Rows
) -> tuple[Rows, Rows]:
    """Seconds per step and tokens per step whose quotient is the time between tokens.

    Without speculation a step is a token. With it, a step's time depends on the machine, so it
    rises with context and streams; what is left moves with the text, so it is acceptance.
    """
    if not tables.draft_tokens:
        return itl, [[1.0] * len(streams) for _ in contexts]
    most = tables.draft_tokens + 0.95
    steps = [[0.0] * len(streams) for _ in contexts]
    for i in range(len(streams)):
        for j, value in enumerate(_rising([row[i] for row in itl])):
            steps[j][i] = TYPICAL_YIELD * value
    yields: Rows = []
    for j, context in enumerate(contexts):
        steps[j] = _rising(steps[j])
        yields.append([])
        for i, n in enumerate(streams):
            row = tables.decode.get((context, n))
            known = row.tokens_per_step if row else None
            mean = min(max(known or steps[j][i] / itl[j][i], 1.05), most)
            yields[j].append(mean)
            steps[j][i] = mean * itl[j][i]
    return steps, yields


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [_mean(pool) for pool in pools for _ in pool]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _step_cost(contexts: Sequence[int], streams: Sequence[int], steps: Rows) -> StepCost:
    """The measured grid, and what lies beyond it: compute per stream, reads per cached token."""
    stream_s = token_s = 0.0
    if len(streams) > 1:
        stream_s = max(0.0, (steps[0][-1] - steps[0][-2]) / (streams[-1] - streams[-2]))
    if len(contexts) > 1:
        span = contexts[-1] - contexts[0]
        slopes = [(b - a) / (n * span) for a, b, n in zip(steps[0], steps[-1], streams)]
        token_s = max(0.0, median(slopes))
    surface = Surface.through(streams, contexts, steps)
    return StepCost(surface, streams[-1], contexts[-1], stream_s, token_s)


# Prompts


def _prefill_cost(tables: ProfileTables, front_end: FrontEnd, max_model_len: int) -> PrefillCost:
    """Cumulative seconds through the rows' tok/s, host work taken off. A row above the model's
    length is a prompt trimmed to 65 tokens below it."""
    tokens, seconds = [0.0], [0.0]
    for context in sorted(tables.prefill):
        prompt = min(context, max_model_len - 65)
        time = prompt / tables.prefill[context].tok_s - front_end.leaves(1, prompt)
        if prompt > tokens[-1]:
            tokens.append(prompt)
            seconds.append(max(time, seconds[-1] + 1e-6 * (prompt - tokens[-2])))
    return PrefillCost(tuple(tokens), tuple(seconds))


# The front end


def _fit_front_end(
    tables: ProfileTables, contexts: Sequence[int], step: StepCost
) -> tuple[FrontEnd, list[Correction]]:
    """Host work per request, and how a burst queues for it.

    A request alone takes what TTFT leaves beside one step. The median request of a burst of C is
    number ``(C + 1) / 2``; it also waits half a step and takes one. The model: its queueing is
    ``(a + b context) (place - 1) ** g``, one a, b and g for the profile. A cell that this misses
    is corrected.
    """
    alone = _rising([_alone(tables, context, step) for context in contexts])
    points = [
        (j, place, row, row.ttft_ms / 1000 - 1.5 * step.seconds(max(1, int(place)), context))
        for j, context in enumerate(contexts)
        for (c, n), row in sorted(tables.decode.items())
        if c == context and (place := (n + 1) / 2) > 1
    ]
    a, b, g = _fit_queue([
        (contexts[j], place, target - alone[j], row.ttft_ms) for j, place, row, target in points
    ])  # fmt: skip
    places = sorted({1.0, *(place for _, place, _, _ in points)})
    places.append(2 * places[-1] + 1)
    known = {(j, place): (row, target) for j, place, row, target in points}
    corrections: list[Correction] = []
    curves = []
    for j, context in enumerate(contexts):
        curve = [alone[j]]
        off = 0.0
        for place in places[1:]:
            model = alone[j] + max(0.0, a + b * context) * (place - 1) ** g
            value = model + off
            if (j, place) in known:
                row, target = known[j, place]
                value = model
                if abs(target - model) > TTFT_TOLERANCE * row.ttft_ms / 1000:
                    value = target
                    cell = Cell("decode", context, round(2 * place - 1))
                    corrections.append(
                        Correction(cell, "host queue of the median request", model * 1000,
                                   max(value, curve[-1]) * 1000, "ms")
                    )  # fmt: skip
                off = value - model
            curve.append(max(value, curve[-1]))
        curves.append(tuple(curve))
    return FrontEnd(tuple(contexts), tuple(places), tuple(curves)), corrections


def _alone(tables: ProfileTables, context: int, step: StepCost) -> float:
    """Host seconds of a single request: TTFT of the cell with the fewest streams, less a step."""
    n = min(streams for c, streams in tables.decode if c == context)
    return max(1e-3, tables.decode[context, n].ttft_ms / 1000 - step.seconds(n, context))


def _fit_queue(
    points: Sequence[tuple[int, float, float, float]],
) -> tuple[float, float, float]:
    """Least squares, relative to each TTFT, of ``(a + b context) (place - 1) ** g``."""
    best = (math.inf, 0.0, 0.0, 1.0)
    for g in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        rows = [((p - 1) ** g / w, c * (p - 1) ** g / w, y / w) for c, p, y, w in points]
        xx, xz, zz = (sum(r[i] * r[k] for r in rows) for i, k in ((0, 0), (0, 1), (1, 1)))
        xy, zy = (sum(r[i] * r[2] for r in rows) for i in (0, 1))
        det = xx * zz - xz * xz
        a, b = (xy / xx if xx else 0.0), 0.0
        if det > 1e-9 * xx * zz:
            a, b = (zz * xy - xz * zy) / det, (xx * zy - xz * xy) / det
        a, b = max(a, 0.0), max(b, 0.0)
        error = sum((a * x + b * z - y) ** 2 for x, z, y in rows)
        best = min(best, (error, a, b, g))
    return best[1:]
