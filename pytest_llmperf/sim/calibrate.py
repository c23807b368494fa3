"""From a profile's tables to an engine that behaves like them.

What a report cannot say is assumed, openly: `TYPICAL_YIELD`, and the shape of `_fit_host`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.sim.cost import HostCost, PrefillCost, StepCost, Surface, rising
from pytest_llmperf.sim.profile import Correction, DecodeRow, EngineModel, ProfileTables

TYPICAL_YIELD = 3.0
"""Tokens of a speculative step where the profile has no step counters."""
SETTLE_S = 2.0
"""What the measuring client waits before its window."""
ITL_TOLERANCE = 0.065
"""A modelled ITL further from the report than this is corrected, under speculative decoding."""
TOTAL_SLACK = 0.015
"""What such a cell's total tok/s gives up, as a fraction."""
TTFT_TOLERANCE = 0.06
"""A modelled TTFT further from the report than this is corrected."""

Rows = list[list[float]]


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
    corrections: list[Correction] = []
    steps, yields, spread = _fit_decode(tables, contexts, streams, corrections)
    step = _step_cost(steps, contexts, streams)
    length = tables.max_model_len or max(
        contexts[-1] + tables.max_tokens + 1024, *tables.prefill
    )  # fmt: skip
    alone = rising([_alone(tables, context, step) for context in contexts])
    prefill = _prefill_cost(tables, contexts, alone, length)
    return EngineModel(
        name=tables.name,
        max_model_len=length,
        kv_tokens=_kv_tokens(tables, length),
        step=step,
        prefill=prefill,
        host=_fit_host(tables, contexts, streams, alone, step, prefill, corrections),
        tokens_per_step=yields,
        text_spread=spread,
        draft_tokens=tables.draft_tokens,
        corrections=tuple(corrections),
    )


def _kv_tokens(tables: ProfileTables, max_model_len: int) -> int:
    """The middle of what the cells leave open: what fitted needs no more, what did not needs more
    (``needed = C x (context + max_tokens)``)."""
    if tables.kv_tokens:
        return tables.kv_tokens
    least = max(tables.needs(*cell) for cell in tables.decode)
    most = min((tables.needs(*cell) for cell in tables.over_capacity), default=2 * least)
    return max((least + most) // 2, max_model_len + 2 * EngineModel.block_size)


# Decode: the time between tokens, and the two factors of it


def _fit_decode(
    tables: ProfileTables,
    contexts: Sequence[int],
    streams: Sequence[int],
    corrections: list[Correction],
) -> tuple[Surface, Surface, Surface | None]:
    """Seconds per step, tokens per step and their spread between requests, over the grid."""
    itl = {cell: _fit_itl(tables, cell[1], row) for cell, row in tables.decode.items()}
    for (context, n), (_, spread) in itl.items():
        if spread:
            cell = Cell("decode", context, n)
            what = "spread of ITL between requests, as a fraction"
            corrections.append(Correction(cell, what, 0.0, spread, ""))
    grid = [[itl.get((c, n)) for n in streams] for c in contexts]
    steps, yields = _split(
        tables, contexts, streams, _complete([[x[0] if x else None for x in row] for row in grid])
    )
    spreads = [[1.0 + (x[1] if x else 0.0) for x in row] for row in grid]
    return (
        Surface.through(streams, contexts, steps),
        Surface.through(streams, contexts, yields),
        Surface.through(streams, contexts, spreads) if any(x[1] for x in itl.values()) else None,
    )


def _fit_itl(tables: ProfileTables, streams: int, row: DecodeRow) -> tuple[float, float]:
    """The time between tokens (s) that gives a cell's total tok/s, and by what fraction it differs
    between requests.

    A median over the one or two requests of a stream counts them alike, however long each is in
    the window; the total does not. Where ITL and total disagree for that reason, the product of
    the two medians ITL and per-request tok/s exceeds 1: of a pair at ``m (1 - d)`` and
    ``m (1 + d)`` it is ``1 / (1 - d^2)``. Of that spread the least that brings ITL near is used,
    and a part of the difference is left to the total.
    """
    target = row.total_tok_s / streams * tables.duration_s
    product = (row.per_request_tok_s or 0.0) * row.itl_ms / 1000
    most = math.sqrt(1 - 1 / product) if product > 1 and tables.draft_tokens else 0.0
    spread = 0.0
    while True:
        itl = streams / row.total_tok_s
        for _ in range(20):
            tokens, itls = _seen(tables, row, itl, spread)
            itl *= tokens / (target * (1 - TOTAL_SLACK) if spread else target)
        off = median(itls) / (row.itl_ms / 1000) - 1
        if abs(off) <= ITL_TOLERANCE or spread + 0.01 > most:
            return itl, spread
        spread += 0.01


def _seen(
    tables: ProfileTables, row: DecodeRow, itl: float, spread: float
) -> tuple[float, list[float]]:
    """Tokens that a stream makes in the window, and the ITL of each of its requests there, when
    every restart costs a TTFT."""
    opens, closes = SETTLE_S, SETTLE_S + tables.duration_s
    start, tokens = 0.0, 0.0
    itls: list[float] = []
    while start < closes:
        each = itl * (1 + spread if len(itls) % 2 else 1 - spread)
        end = start + tables.max_tokens * each
        tokens += max(0.0, min(end, closes) - max(start, opens)) / each
        itls.append(each)
        start = end + row.ttft_ms / 1000
    return tokens, itls


def _complete(rows: list[list[float | None]]) -> Rows:
    """Fill in cells over capacity: there, more streams slow a context as they do the nearest
    context that has them."""
    full: Rows = [[] for _ in rows]
    for i in range(len(rows[0])):
        known = [k for k in range(len(rows)) if rows[k][i] is not None]
        for j in range(len(rows)):
            near = rows[min(known, key=lambda k: abs(k - j))]
            value, before = near[i], near[i - 1] if i else None
            assert value is not None
            if rows[j][i] is None and before is not None:
                value *= full[j][i - 1] / before
            full[j].append(value)
    return full


def _split(
    tables: ProfileTables, contexts: Sequence[int], streams: Sequence[int], itl: Rows
) -> tuple[Rows, Rows]:
    """Seconds per step and tokens per step whose quotient is the time between tokens.

    Without speculation a step is a token. With it, a step's time is the machine's, so it rises
    with context and streams; what is left moves with the text, so it is acceptance.
    """
    if not tables.draft_tokens:
        return itl, [[1.0] * len(streams) for _ in contexts]
    columns = [rising([row[i] for row in itl]) for i in range(len(streams))]
    steps, yields = [], []
    for j, context in enumerate(contexts):
        smooth = rising([TYPICAL_YIELD * column[j] for column in columns])
        means = [
            _within(tables, tables.decode.get((context, n)), smooth[i] / itl[j][i])
            for i, n in enumerate(streams)
        ]
        yields.append(means)
        steps.append([mean * seconds for mean, seconds in zip(means, itl[j], strict=True)])
    return steps, yields


def _within(tables: ProfileTables, row: DecodeRow | None, inferred: float) -> float:
    """Tokens per step as the profile says, else as inferred, and possible with its drafts."""
    mean = (row.tokens_per_step if row else None) or inferred
    return min(max(mean, 1.05), tables.draft_tokens + 0.95)


def _step_cost(steps: Surface, contexts: Sequence[int], streams: Sequence[int]) -> StepCost:
    """The grid, and what lies beyond: compute per stream, reads per cached token."""
    first, last, most = contexts[0], contexts[-1], streams[-1]
    stream_s = token_s = 0.0
    if len(streams) > 1:
        added = steps.at(most, first) - steps.at(streams[-2], first)
        stream_s = max(0.0, added / (most - streams[-2]))
    if len(contexts) > 1:
        added = median((steps.at(n, last) - steps.at(n, first)) / n for n in streams)
        token_s = max(0.0, added / (last - first))
    return StepCost(steps, most, last, stream_s, token_s)


# Prompts


def _alone(tables: ProfileTables, context: int, step: StepCost) -> float:
    """Host seconds of a lone request: TTFT of the cell with the fewest streams, less a step."""
    n = min(streams for c, streams in tables.decode if c == context)
    return max(1e-3, tables.decode[context, n].ttft_ms / 1000 - step.seconds(n, context))


def _prefill_cost(
    tables: ProfileTables, contexts: Sequence[int], alone: Sequence[float], max_model_len: int
) -> PrefillCost:
    """Cumulative seconds through the rows' tok/s, host work taken off. A row above the model's
    length is a prompt trimmed to 65 tokens below it."""
    host = HostCost(tuple(contexts), (1.0,), tuple((value,) for value in alone))
    tokens, seconds = [0.0], [0.0]
    for context in sorted(tables.prefill):
        prompt = min(context, max_model_len - 65)
        if prompt <= tokens[-1]:
            continue
        time = prompt / tables.prefill[context].tok_s - host.seconds(1, prompt)
        seconds.append(max(time, seconds[-1] + 1e-6 * (prompt - tokens[-1])))
        tokens.append(prompt)
    return PrefillCost(tuple(tokens), tuple(seconds))


# The host


def _fit_host(
    tables: ProfileTables,
    contexts: Sequence[int],
    streams: Sequence[int],
    alone: Sequence[float],
    step: StepCost,
    prefill: PrefillCost,
    corrections: list[Correction],
) -> HostCost:
    """Host seconds of a request while so many are at the front end.

    The model adds ``(a + b context) (n - 1) ** g`` to a lone request's: one a, b and g for the
    whole profile. What a burst waits beyond the host is one step, with every prompt's last block
    in it. Where the model misses a cell's TTFT it is corrected, and the correction listed.
    """
    targets = {}
    for (context, n), row in tables.decode.items():
        tail = prefill.seconds(context - min(context, EngineModel.block_size), context)
        burst = max(n * tail, step.seconds(n, context))
        targets[context, n] = max(1e-3, row.ttft_ms / 1000 - burst)
    base = dict(zip(contexts, alone, strict=True))
    a, b, g = _fit_sharing([
        (c, n, seconds - base[c], tables.decode[c, n].ttft_ms / 1000)
        for (c, n), seconds in targets.items() if n > 1
    ])  # fmt: skip
    at_once = sorted({1, *streams, 2 * streams[-1]})
    rows = []
    for context in contexts:
        values: list[float] = []
        off = 0.0
        for n in at_once:
            model = base[context] + (a + b * context) * (n - 1) ** g
            target = targets.get((context, n))
            if target is None:
                values.append(max(model + off, values[-1] if values else 0.0))
                continue
            off = 0.0
            if abs(target - model) > TTFT_TOLERANCE * tables.decode[context, n].ttft_ms / 1000:
                off = target - model
                cell = Cell("decode", context, n)
                what = f"host work on a request while {n} are at the front end"
                corrections.append(Correction(cell, what, 1000 * model, 1000 * target, "ms"))
            values.append(model + off)
        rows.append(tuple(values))
    return HostCost(tuple(contexts), tuple(at_once), tuple(rows))


def _fit_sharing(
    points: Sequence[tuple[int, int, float, float]],
) -> tuple[float, float, float]:
    """Least squares of seconds ``(a + b context) (n - 1) ** g``, each relative to its TTFT."""
    best = (math.inf, 0.0, 0.0, 1.0)
    for g in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
        rows = [((n - 1) ** g / w, c * (n - 1) ** g / w, y / w) for c, n, y, w in points]
        xx, xz, zz, xy, zy = (
            sum(r[i] * r[k] for r in rows) for i, k in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
        )
        det = xx * zz - xz * xz
        a, b = (xy / xx if xx else 0.0), 0.0
        if det > 1e-9 * xx * zz:
            a, b = (zz * xy - xz * zy) / det, (xx * zy - xz * xy) / det
        a, b = max(a, 0.0), max(b, 0.0)
        error = sum((a * x + b * z - y) ** 2 for x, z, y in rows)
        best = min(best, (error, a, b, g))
    return best[1:]
