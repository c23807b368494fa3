"""Whether a decode cell was measured at all, and what belongs beside its numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.client.health import client_bound
from pytest_llmperf.client.reader import MAX_MALFORMED
from pytest_llmperf.measure.asking import LEAST_SHARE
from pytest_llmperf.measure.clocks import NAMED_S, UNGATED_S
from pytest_llmperf.measure.counting import Records
from pytest_llmperf.measure.gauges import Edges
from pytest_llmperf.measure.repetition import identical, loops
from pytest_llmperf.measure.summary import Decoded
from pytest_llmperf.model.result import ClientHealth, Notice, ServerInfo

BUSY = 0.98
_RESTART_GAPS = 0.01
_DRIFT_SIGMAS = 3.0
_DRIFT_LEAST = 0.01
"""A drift smaller than this is of no interest, however sure."""
_COUNTERS_APART = 0.05
_LONG = 16
"""Tokens of an answer that a server which streams sends in several chunks."""
_TOKEN_CHARS = 4
"""Characters of a token, about."""
_UNEVEN = 3.0
"""Times slower than the median: chance and turns of batches stay well below."""
_CHUNKS_IN_ONE_GO = 0.5
"""Share of tiny gaps that shows a buffer on the way, for an engine of one chunk a step."""
_CHUNKS_IN_ONE_GO_SPECULATIVE = 0.875
"""The same for one that may send a chunk for each of up to eight tokens a step."""


def failure(records: Records) -> str | None:
    """The first failure's words and how many requests share it; a success without a token counts
    as one."""
    requests = [record for stream in records for record in stream]
    failed = [r for r in requests if r.end == "failed" or (r.end == "finished" and not r.stamps)]
    if not failed:
        return None
    words = failed[0].error or "finished without a single token"
    return f"{len(failed)} of {len(requests)} requests failed: {words}"


def admitted(cell: Decoded) -> int | None:
    """How many streams the server lets decode at once, where that is fewer than asked for: never
    more decoded at the same time, that many did for most of the window, and the others' turn came
    only when one of them ended. None otherwise."""
    window = cell.window
    turns = window.restarting > 0 and window.peak_decoding < cell.concurrency
    return window.peak_decoding if turns and window.at_peak >= 0.5 else None


def invalid(
    cell: Decoded, prompt_target: int, server: ServerInfo, health: ClientHealth
) -> str | None:
    """Why the cell's numbers mean nothing, or None."""
    window = cell.window
    if cell.edges and restarted(cell.edges):
        return "the server was restarted during the measurement"
    counted = [r.prompt_tokens for s in cell.records for r in s if r.prompt_tokens is not None]
    if counted and min(counted) < LEAST_SHARE * prompt_target:
        return f"prompt truncated: the server read {min(counted):,} of {prompt_target:,} tokens"
    if (bad := _malformed(cell)) is not None:
        return bad
    if bound := client_bound(health):
        return bound
    if (whole := _not_streamed(cell)) is not None:
        return f"the server does not stream: {whole}"
    if window.tokens <= 0:
        return "no token in the window"
    if (waited := _longest_wait(cell)) is not None:
        return f"a restarted request had no token after {waited:.1f} s"
    busy = window.decoding + window.restarting
    if busy < BUSY * cell.concurrency:
        return (
            f"streams were not kept busy: {busy:.2f} of {cell.concurrency} on average"
            f" (limit {BUSY:.0%})"
        )
    if server.speculative and _looping(cell):
        return (
            "repetition loops under speculative decoding make every draft right; raise the"
            " temperature, or use another model or prompt"
        )
    return None


def restarted(edges: Edges) -> bool:
    """Whether the server process of the second scrape is another one."""
    first, last = edges.first, edges.last
    if first.started is not None and last.started is not None:
        return first.started != last.started
    counters = (
        (first.generated_tokens, last.generated_tokens),
        (first.prompt_tokens, last.prompt_tokens),
    )
    return any(a is not None and b is not None and b < a for a, b in counters)


def is_buffered(cell: Decoded, server: ServerInfo) -> bool:
    """Whether something on the way collects chunks and hands them on in bursts."""
    one_go = _CHUNKS_IN_ONE_GO_SPECULATIVE
    if server.speculative is False:
        one_go = _CHUNKS_IN_ONE_GO
    return cell.tiny_gaps >= one_go


def clock_notices(health: ClientHealth) -> Iterator[Notice]:
    """That the wall clock was set while the kernel stamped by it, and which hosts' clocks are not
    known as closely as they should be."""
    if moved_ms := health.clock_moved_ms:
        text = (
            f"this machine's wall clock was set by {moved_ms:+,.1f} ms meanwhile: stamps of the"
            " kernel from before, read after that moment, were replaced by this program's"
        )
        yield Notice(code="clock-set", text=text)
    for host in health.hosts:
        error_s = (host.clock_error_ms or 0.0) / 1e3
        text = f"the clock of {host.name} is known to within {error_s * 1e3:.1f} ms only"
        if error_s > UNGATED_S:
            text += f" (limit {UNGATED_S * 1e3:.0f}): TTFT is not gated"
            yield Notice(code="clock-unsure", text=text)
        elif error_s > NAMED_S:
            yield Notice(code="clock-error", text=f"{text}: edges of the window are no better")


def notices(
    cell: Decoded, server: ServerInfo, max_tokens: int, *, buffered: bool
) -> Iterator[Notice]:
    """Named conditions of a valid cell."""
    if buffered:
        text = (
            f"not measurable: buffered. {cell.tiny_gaps:.0%} of the chunks came in one go with"
            " another; look for a proxy that buffers. ITL and TTFT are left out"
        )
        yield Notice(code="buffered", text=text)
    if cell.edges is None and any(gauges.steps is not None for gauges in cell.seen):
        text = "the server's metrics answered late at an edge of the window: no count of its steps"
        yield Notice(code="metrics-late", text=text)
    if preempted := cell.counted_by_server("preemptions"):
        text = f"{preempted:.0f} preemptions in the window: the KV cache ran out"
        yield Notice(code="preemptions", text=text)
    if not buffered and (first := cell.first_chunk_tokens) is not None and first >= 2:
        text = f"TTFT is that of the first chunk of {first:.0f} tokens"
        yield Notice(code="first-chunk", text=text)
    if cell.gap_share > _RESTART_GAPS:
        text = f"streams spent {cell.gap_share:.1%} of the window between two requests"
        yield Notice(code="restart-gaps", text=text)
    itls = sorted(cell.window.itls)
    if itls and itls[-1] > _UNEVEN * (median := itls[len(itls) // 2]):
        text = (
            f"the slowest of {len(itls)} requests took {itls[-1] * 1e3:.1f} ms a token, the median"
            f" {median * 1e3:.1f}"
        )
        yield Notice(code="uneven-streams", text=text)
    drift = cell.drift
    if drift and abs(drift.sigmas) > _DRIFT_SIGMAS and abs(drift.change) > _DRIFT_LEAST:
        text = f"the window's second half was {drift.change:+.1%} against its first"
        yield Notice(code="drift", text=text)
    yield from _endings(cell, max_tokens)
    yield from _texts(cell, server)
    yield from _counters(cell)


def _endings(cell: Decoded, max_tokens: int) -> Iterator[Notice]:
    finished = [r for stream in cell.records for r in stream if r.end == "finished"]
    early = [
        r
        for r in finished
        if r.finish_reason != "length" or (r.completion_tokens or max_tokens) < max_tokens
    ]
    if early:
        text = (
            f"{len(early)} of {len(finished)} finished requests ended before {max_tokens:,} tokens"
            f" in spite of ignore_eos ({early[0].finish_reason}); {cell.gap_share:.1%} of the"
            " window is prefill of restarts"
        )
        yield Notice(code="early-stops", text=text)
    odd = [r for stream in cell.records for r in stream if r.malformed or r.rewrapped]
    if odd:
        frames = sum(r.malformed + r.rewrapped for r in odd)
        comments = sum(r.rewrapped for r in odd)
        of_them = f", {comments:,} of them comments sent as data" if comments else ""
        text = f"{frames:,} malformed frames in {len(odd)} requests were left out{of_them}"
        yield Notice(code="malformed-frames", text=text)
    if any(r.usage_odd for stream in cell.records for r in stream):
        yield Notice(code="odd-usage", text="token counts that cannot be were left out")
    if hidden := sum(bool(r.hidden_tokens) for r in finished):
        text = (
            f"the usage of {hidden} of {len(finished)} finished requests counts reasoning that was"
            " not streamed, so it was not taken for the count of their chunks"
        )
        yield Notice(code="hidden-reasoning", text=text)


def _texts(cell: Decoded, server: ServerInfo) -> Iterator[Notice]:
    if same := identical(r for stream in cell.records for r in stream):
        text = f"{same} requests generated the same text: is sampling really on?"
        yield Notice(code="identical-streams", text=text)
    if not server.speculative and (looping := _looping(cell)):
        text = f"{looping} requests went round in circles"
        yield Notice(code="repetition", text=text)


def _counters(cell: Decoded) -> Iterator[Notice]:
    running = [g.running for g in cell.seen if g.running is not None]
    if running and min(running) > cell.concurrency:
        text = f"at least {min(running)} requests ran on the server, {cell.concurrency} are ours"
        yield Notice(code="other-traffic", text=text)
        return
    generated = cell.edges.rose("generated_tokens") if cell.edges else None
    if cell.edges and generated:
        theirs = generated / cell.edges.seconds
        apart = theirs / cell.total_tok_s - 1
        # the counter rises by whole steps, of which each edge may cut one
        steps = 2 * (cell.step_s or 0.0) / cell.window.seconds
        if abs(apart) > max(_COUNTERS_APART, steps):
            text = (
                f"the server counted {theirs:,.1f} generated tok/s, we {cell.total_tok_s:,.1f}"
                f" ({apart:+.0%})"
            )
            yield Notice(code="counters-disagree", text=text)


def _looping(cell: Decoded) -> int:
    return sum(loops(r.tail) for stream in cell.records for r in stream)


def _malformed(cell: Decoded) -> str | None:
    """Why frames that could not be read spoil the count of tokens, or None."""
    requests = [record for stream in cell.records for record in stream]
    bad = sum(record.malformed for record in requests)
    frames = bad + sum(record.chunks[-1] for record in requests if record.chunks)
    if bad > MAX_MALFORMED * frames:
        return f"{bad:,} of {frames:,} frames were malformed (limit {MAX_MALFORMED:.0%})"
    if bad and cell.counted.source == "chunks":
        return f"{bad:,} frames were malformed, and no usage tells how many tokens they had"
    return None


def _not_streamed(cell: Decoded) -> str | None:
    """How most of the finished requests of some length came, if all at once; else None."""
    finished = [r for s in cell.records for r in s if r.end == "finished" and r.stamps]
    long = [r for r in finished if (r.completion_tokens or len(r.tail) // _TOKEN_CHARS) >= _LONG]
    at_once = [r for r in long if r.stamps[0] == r.stamps[-1]]
    if 2 * len(at_once) <= len(long) or not at_once:
        return None
    record = at_once[-1]
    tokens = record.completion_tokens
    amount = f"{tokens:,} tokens" if tokens else f"{len(record.tail):,} characters"
    chunks = record.chunks[-1]
    return f"{amount} in one chunk" if chunks == 1 else f"{amount} in {chunks:,} chunks at once"


def _longest_wait(cell: Decoded) -> float | None:
    """Seconds a restarted request waited in vain until the window's end, far beyond the others."""
    limit = max(5.0, 10 * max(cell.ttfts, default=0.0))
    waits = [cell.window.t1 - c.sent for s in cell.streams for c in s[1:] if not c.stamps.size]
    return max((wait for wait in waits if wait > limit), default=None)
