"""How long the selected cells will take, for the line shown before the first one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_llmperf.model.grid import Cell, in_order

ASSUMED_PREFILL_TOK_S = 5000.0
"""Where no baseline says how fast this server prefills."""
PREFILL_SAMPLES = 3
PREFILL_ENOUGH_S = 10.0
WARM_UP_CONTEXT = 8192
CELL_OVERHEAD_S = 1.0
"""Connecting, ramping, draining and judging a cell."""


def estimate_seconds(
    cells: Iterable[Cell],
    duration_s: float,
    settle_s: float,
    prefill_tok_s: Mapping[int, float] | None = None,
    warm_load_s: float = 0.0,
) -> float:
    """Wall time in seconds, for cells that fit, measured once each.

    Args:
        cells: what will be measured; over-capacity cells left out.
        duration_s: length of a decode window.
        settle_s: steady load before a window opens.
        prefill_tok_s: prefill rate by context, from a baseline; the nearest context stands in
            for one that is missing.
        warm_load_s: load before the first decode cell, at most as long as a window.
    """
    total, warm, warmed_up, loaded = 0.0, set(), False, False
    for cell in in_order(cells):
        cold = cell.context / _rate(cell.context, prefill_tok_s)
        total += CELL_OVERHEAD_S
        if cell.phase == "decode":
            total += settle_s + duration_s + (0.0 if cell.context in warm else cold)
            if warm_load_s and not loaded:
                total += settle_s + min(warm_load_s, duration_s)
            loaded = True
        else:
            if not warmed_up:
                total += WARM_UP_CONTEXT / _rate(WARM_UP_CONTEXT, prefill_tok_s)
                warmed_up = True
            enough = PREFILL_ENOUGH_S / cold if cold else PREFILL_SAMPLES
            total += cold * min(PREFILL_SAMPLES, -(-enough // 1))
        warm.add(cell.context)
    return total


def _rate(context: int, rates: Mapping[int, float] | None) -> float:
    known = {at: rate for at, rate in (rates or {}).items() if rate > 0}
    if not known:
        return ASSUMED_PREFILL_TOK_S
    return known[min(known, key=lambda at: abs(at - context))]
