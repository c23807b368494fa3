"""Keys that name a metric in some cells, as profiles and options write them. Pure.

``METRIC`` is every cell that has it, ``METRIC@PATTERN`` those whose id fits, where ``*`` stands for
any text: ``ttft_p99_ms@decode[8K-*]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS

ANY = "*"
"""In the place of a metric, where a key may mean all of them."""


def check_key(key: str, *, any_metric: bool = False) -> str:
    """The key, if it is one.

    Args:
        any_metric: ``*`` may stand for every metric.

    Raises:
        ValueError: an unknown metric, or a pattern that no cell can fit.
    """
    metric, at, pattern = key.partition("@")
    if metric not in METRICS and not (any_metric and metric == ANY):
        raise ValueError(f"no metric {metric!r}; there are {', '.join(METRICS)}")
    if at and ANY not in pattern:
        Cell.parse(pattern)
    elif at and not re.fullmatch(r"[a-z*]+(\[?[0-9K*]+(-?c?[0-9*]+)?\]?)?", pattern):
        raise ValueError(f"{pattern!r} fits no cell; write as decode[8K-*] or decode[*-c16]")
    return key


def applies(key: str, metric: str, cell: Cell) -> bool:
    """Whether the key names this metric in this cell."""
    named, at, pattern = key.partition("@")
    if named not in (metric, ANY) or cell.phase not in METRICS[metric].phases:
        return False
    return not at or bool(re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), cell.id))


def choose_key(keys: Iterable[str], metric: str, cell: Cell) -> str | None:
    """Of the keys that apply the one that says most of the cell, so that an exception to a rule
    needs no order; of several alike the last."""
    found = [key for key in keys if applies(key, metric, cell)]
    return max(reversed(found), key=lambda key: len(key.replace(ANY, "")), default=None)
