"""Whether a cell fits on a server: arithmetic on what the server says it holds. Pure.

"Fits" is a hint that the ramp of a cell can overrule; what engines report has known faults.
"""

from __future__ import annotations

from pytest_llmperf.model.choices import CapacityMode, PromptMode
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.result import Capacity, ServerInfo

TRIM_SHARE = 0.03
"""A prefill context this share above the model's limit is trimmed rather than left out."""
TRIM_ROOM = 65
"""Tokens a trimmed prefill stays below the limit: the one it asks for, and slack for the count."""


def prefill_tokens(context: int, max_model_len: int | None) -> int | None:
    """Prompt tokens of the prefill cell of this context; fewer than asked for: it is trimmed.

    None: it does not fit. The 512K row of a server limited to 524,288 tokens is a trimmed one.
    """
    if max_model_len is None or context + 1 <= max_model_len:
        return context
    trimmed = max_model_len - TRIM_ROOM
    return trimmed if trimmed > 0 and context <= max_model_len * (1 + TRIM_SHARE) else None


def disbelief(tokens: int, max_model_len: int | None) -> str | None:
    """Why a reported KV cache of ``tokens`` is not believed, or None when it is.

    Below one full-length sequence a server does not start, so such a figure is that of a part:
    one rank of several, a stale block size, context parallelism.
    """
    if max_model_len is None or tokens >= max_model_len:
        return None
    return (
        f"the server reports {tokens:,} KV tokens, less than one sequence of {max_model_len:,}: "
        "not believed"
    )


def kv_budget(info: ServerInfo, kv_tokens: int | None = None) -> int | None:
    """The KV tokens to reckon with, or None where they are unknown. The user's are believed."""
    if kv_tokens is not None:
        return kv_tokens
    if info.kv_tokens is None or disbelief(info.kv_tokens, info.max_model_len):
        return None
    return info.kv_tokens


def fits(
    cell: Cell,
    mode: CapacityMode,
    info: ServerInfo,
    max_tokens: int,
    kv_tokens: int | None = None,
    prompts: PromptMode = "shared",
) -> Capacity | None:
    """None when the cell fits as far as is known, else why it does not.

    ``reserved`` counts concurrency x (context + max_tokens), ``shared`` a shared prompt once;
    ``try`` leaves everything but the model's own limit, beyond which requests are refused, to
    the ramp. A decode cell of context 0 is never left out for its KV: what its streams fill is
    decided by how long they run.
    """
    budget = kv_budget(info, kv_tokens)
    limit = info.max_model_len
    if cell.phase == "prefill":
        tokens = prefill_tokens(cell.context, limit)
        if tokens is None:
            needs = cell.context + 1
            return _too_long(needs, budget, f"a prompt of {cell.context:,} tokens", limit)
        return _kv(tokens + 1, budget, "") if mode != "try" else None

    length = cell.context + max_tokens
    if mode == "shared" and prompts == "shared":
        needs, how = cell.context + cell.concurrency * max_tokens, " with the prompt held once"
    else:
        needs, how = cell.concurrency * length, " reserved if nothing is shared"
    if limit is not None and length > limit:
        what = f"{cell.context:,} + {max_tokens:,} output tokens"
        return _too_long(needs, budget, what, limit)
    if mode == "try":
        return None
    if info.max_num_seqs is not None and cell.concurrency > info.max_num_seqs:
        reason = f"the server admits {info.max_num_seqs} of {cell.concurrency}"
        return Capacity(needs=needs, budget=budget, reason=reason)
    return _kv(needs, budget, how) if cell.context else None


def _too_long(needs: int, budget: int | None, what: str, limit: int | None) -> Capacity:
    reason = f"{what} exceed the model's limit of {limit:,}"
    return Capacity(needs=needs, budget=budget, reason=reason)


def _kv(needs: int, budget: int | None, how: str) -> Capacity | None:
    if budget is None or needs <= budget:
        return None
    reason = f"needs {needs:,} KV tokens{how}, the server has {budget:,}"
    return Capacity(needs=needs, budget=budget, reason=reason)
