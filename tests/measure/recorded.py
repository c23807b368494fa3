"""Records as the client would have left them, in virtual time."""

from __future__ import annotations

from pytest_llmperf.client.record import End, StreamRecord


def request(
    sent: float,
    first: float,
    step: float,
    chunks: int,
    *,
    per_chunk: int = 1,
    usage: str | None = "continuous",
    total: int | None = None,
    end: End | None = "cancelled",
    finish: str | None = None,
    prompt: int | None = 1000,
    cached: int | None = None,
    text: str = "",
    error: str = "",
) -> StreamRecord:
    """One request with evenly spaced chunks."""
    stamps = [first + i * step for i in range(chunks)]
    tokens = [(i + 1) * per_chunk for i in range(chunks)]
    finished = end == "finished"
    if usage == "continuous" and tokens:
        total = tokens[-1]
    return StreamRecord(
        sent_at=sent,
        headers_at=sent,
        status=200,
        stamps=stamps,
        tokens=tokens if usage == "continuous" else [],
        chunks=list(range(1, chunks + 1)),
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=total,
        usage_seen=usage if usage != "final" or finished else None,  # type: ignore[arg-type]
        finish_reason=finish or ("length" if finished else None),
        done=finished,
        end=end,
        ended_at=stamps[-1] if stamps else first,
        text_hash=hash(text) & 0xFFFFFFFF,
        tail=text,
        error=error,
    )


def stream(
    *,
    ttft: float = 0.1,
    step: float = 0.02,
    chunks: int = 50,
    per_chunk: int = 1,
    until: float = 10.0,
    start: float = 0.0,
    **more: object,
) -> list[StreamRecord]:
    """A stream that restarts at once whenever it has made its chunks, until it is cut off."""
    found, at = [], start
    while at < until:
        left = int((until - at - ttft) / step) + 1
        done = left > chunks
        made = chunks if done else max(left, 0)
        found.append(
            request(
                at,
                at + ttft,
                step,
                made,
                per_chunk=per_chunk,
                end="finished" if done else "cancelled",
                **more,  # type: ignore[arg-type]
            )
        )
        at += ttft + (chunks - 1) * step
    return found
