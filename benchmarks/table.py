"""Results as text: a line for each point, what the goals say, the README's table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

_FULL = "512 x 50/s"
_BARE = "bare protocol"
"""A yardstick, no peer."""


def print_row(row: dict[str, Any]) -> None:
    name = f"{row['load']:<14} {row['client']:<22}"
    if "error" in row:
        print(f"{name} failed: {row['error']}", flush=True)
        return
    seen, truth, off = row["seen"], row["truth"], row["error_of"]
    late = f"server late p99 {truth['late_p99_ms']:.2f} ms" if truth["late_p99_ms"] else ""
    print(
        f"{name} {_number(row['us_per_chunk'], 1):>6} us/chunk"
        f"  TTFT {_number(seen['ttft_ms'], 1)} ({_number(off['ttft_ms'], 1, '+')})"
        f"  ITL {_number(seen['itl_ms'], 2)} ({_percent(off['itl_ms'])})"
        f"  p99 {_number(seen['itl_p99_ms'], 1)} (true {truth['itl_p99_ms']:.1f})"
        f"  tok/s {_number(seen['tok_s'], 0)} ({_percent(off['tok_s'])})"
        f"  {late}  {seen['bound'] or ''}",
        flush=True,
    )


def print_summary(result: dict[str, Any]) -> None:
    """The goals, each with what was found."""
    print()
    for goal, found, met in judge(result):
        print(f"{'met ' if met else 'MISSED' if met is False else '-   '}  {goal}: {found}")
    for name, why in result["missing"].items():
        print(f"not measured: {name}: {why}")


def judge(result: dict[str, Any]) -> list[tuple[str, str, bool | None]]:
    """Goal, what was found, and whether it is met; None where something is missing for it."""
    rows = _by_point(r for r in result["rows"] if "error" not in r)
    verdicts: list[tuple[str, str, bool | None]] = []

    def add(goal: str, found: str, met: bool | None) -> None:
        verdicts.append((goal, found, met))

    ours = rows.get(("ours", _FULL))
    for name in ("ours", "ours (2 workers)", "ours (plain asyncio)"):
        if row := rows.get((name, _FULL)):
            off, bound = row["error_of"], bool(row["seen"]["bound"])
            met = abs(off["ttft_ms"]) <= 2 and abs(off["itl_ms"]) <= 0.002
            met |= bound and name.endswith("asyncio)")
            found = f"{off['ttft_ms']:+.1f} ms, {off['itl_ms']:+.2%}"
            found += ", says client bound" if bound else ""
            add(f"{name}, {_FULL}: TTFT within 2 ms, ITL within 0.2 %", found, met)
    if ours:
        p99 = ours["seen"]["itl_p99_ms"]
        limit, whose = 1.15 * ours["truth"]["itl_p99_ms"], "the server's own"
        if rust := rows.get(("sglang (rust)", _FULL)):
            limit, whose = 1.15 * rust["seen"]["itl_p99_ms"], "SGLang's Rust client's"
        add(f"p99 at most 1.15 x {whose}", f"{p99:.1f} ms, limit {limit:.1f}", p99 <= limit)
        us = ours["us_per_chunk"]
        bare = rows.get((f"{_BARE}, msgspec", _FULL))
        beside = f", {us / bare['us_per_chunk']:.2f} x a bare one's that decodes" if bare else ""
        add("CPU per paced chunk, goal 25 us", f"{us:.1f} us{beside}", us <= 25)
        for client, factor in (("httpx", 1 / 3), ("aiohttp", 1.1)):
            if other := rows.get((client, _FULL)):
                ratio = us / other["us_per_chunk"]
                add(f"at most {factor:.2f} x {client}'s", f"{ratio:.2f}", ratio <= factor)
        peers = {
            name: row["us_per_chunk"]
            for (name, load), row in rows.items()
            if load == _FULL and not name.startswith(("ours", _BARE)) and "rust" not in name
            if row["us_per_chunk"] is not None
        }
        if peers:
            best = min(peers, key=peers.__getitem__)
            add("below every Python peer's", f"best: {best} {peers[best]:.1f}", us < peers[best])
        if two := rows.get(("ours (2 workers)", _FULL)):
            ratio = two["us_per_chunk"] / us
            add("two workers at most 1.15 x one", f"{ratio:.2f}", ratio <= 1.15)
    for (name, load), row in rows.items():
        if name == "ours" and "flood" in load:
            off, bound = row["error_of"]["tok_s"], bool(row["seen"]["bound"])
            found = f"{off:+.2%}" + (", says client bound" if bound else "")
            add(f"{load}: tok/s within 1 %, or client bound", found, abs(off) <= 0.01 or bound)
        elif name == "ours" and load.endswith("x 4"):
            off = row["error_of"]
            worst = max(abs(off["itl_ms"]), abs(off["tok_s"]))
            add(f"{load}: ITL, tok/s within 0.5 %", f"{worst:.2%}", worst <= 0.005)
    return verdicts


def render_markdown(result: dict[str, Any]) -> str:
    """The README's table."""
    rows = _by_point(result["rows"])
    names = list(dict.fromkeys(client for client, _ in rows))
    lines = [
        "| Client | CPU µs a chunk | TTFT at 512 streams, ms off | ITL | ITL p99, ms | tok/s "
        "| 4 tokens a chunk, 128 streams: ITL / tok/s | flood, 128 streams: tok/s taken |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        row = rows.get((name, _FULL))
        if row is None or "error" in row:
            why = row["error"] if row else next(r["error"] for k, r in rows.items() if k[0] == name)
            lines.append(f"| {name} | did not run: {why.replace('|', ' ')} |||||||")
            continue
        off, four = row["error_of"], rows.get((name, "128 x 50/s x 4"))
        flood = rows.get((name, "128 x flood"))
        cells = [
            name,
            _number(row["us_per_chunk"], 0),
            _number(off["ttft_ms"], 1, "+"),
            _percent(off["itl_ms"]),
            _number(row["seen"]["itl_p99_ms"], 1),
            _percent(off["tok_s"]),
            " / ".join(_percent(_off(four, n)) for n in ("itl_ms", "tok_s")),
            _flood(flood),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ours = rows.get(("ours", _FULL))
    truth = ours["truth"] if ours and "truth" in ours else None
    machine = result["machine"]
    lines += [
        "",
        f"512 streams, 50 chunks a second each, one token a chunk, on {machine['cores']} cores "
        f"({machine['cpu']}), Python {machine['python']}, {result['date'][:10]}: differences from "
        "what the server wrote down."
        + (f" The server's own ITL p99 was {truth['itl_p99_ms']:.1f} ms." if truth else ""),
    ]
    lines += [f"Not measured: {name} ({why})." for name, why in result["missing"].items()]
    return "\n".join(lines)


def _by_point(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """One row for each client and load: where there were several rounds, their medians."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        rounds.setdefault((row["client"], row["load"]), []).append(row)
    return {
        point: _middle([row for row in found if "error" not in row] or found)
        for point, found in rounds.items()
    }


def _middle(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _middle([value[name] for value in values]) for name in first}
    if all(isinstance(value, (int, float)) for value in values):
        return median(values)
    return max(values, key=values.count)


def _flood(row: dict[str, Any] | None) -> str:
    if row is None or "error" in row:
        return "-"
    off = row["error_of"]["tok_s"]
    found = f"{row['seen']['tok_s']:,.0f}" + (f" ({off:+.2%})" if off is not None else "")
    return found + (", says client bound" if row["seen"]["bound"] else "")


def _off(row: dict[str, Any] | None, name: str) -> float | None:
    return None if row is None or "error" in row else row["error_of"][name]


def _number(value: float | None, digits: int, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"
