"""Measure the clients side by side against a server whose truth is known.

The server has a core of its own, a client of one process the other; clients of several processes
share both. CPU is what the client spent: clients that run in a process of ours measure the time
under load, of the others the whole run counts, less a run of one short request.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.clients import Client, every
from benchmarks.load import BENCH, Load, flood, paced
from benchmarks.table import print_row, print_summary, render_markdown
from benchmarks.truth import TruthServer, build, place

ROOT = Path(__file__).resolve().parent.parent
LATEST = Path(__file__).parent / "results" / "latest.json"
LIMIT_S = 120
QUICK = ("ours", "bare protocol", "httpx", "aiohttp")
"""Clients that are measured at every point; the peers leave the last ones out."""


def list_points(seconds: float) -> list[Load]:
    """From ``PEER_POINTS`` on only for the quick clients. The point that most goals are about comes
    several times, since the machine is not always as fast: its medians count."""
    full = paced(512, seconds=seconds)
    return [
        *(paced(n, seconds=seconds) for n in (1, 32, 128)),
        full,
        paced(128, 4, seconds),
        full,
        *(flood(n, seconds=seconds) for n in (1, 32, 128)),
        full,
        paced(32, 4, seconds),
        paced(1, 4, seconds),
        paced(512, 4, seconds),
        full,
        flood(512, seconds=seconds),
        full,
        flood(128, 4, seconds),
        paced(512, seconds=seconds, places=1),
        paced(512, seconds=seconds, changing=True),
        paced(1024, seconds=seconds, rate=25),
        paced(4096, seconds=seconds, rate=5),
    ]


PEER_POINTS = 10


def measure(client: Client, load: Load, realtime: bool) -> dict[str, Any]:
    """One point: what the client says, the truth, and the CPU seconds of the client's processes."""
    cores = sorted(os.sched_getaffinity(0))
    own = set(cores) if client.several_processes or len(cores) < 2 else {cores[0]}
    out = BENCH / f"out-{os.getpid()}"
    _remove(out)
    server = TruthServer(load, cores[-1], realtime)
    with server:
        began = time.monotonic()
        process = subprocess.Popen(
            client.command(server.url, load, out),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: place(own, 10 if realtime else 0),
        )  # fmt: skip
        words, cpu_s = _wait(process)
    took = time.monotonic() - began
    try:
        seen = client.read(out)
    except (OSError, LookupError, ValueError, TypeError) as error:
        last = (words.strip().splitlines() or [repr(error)])[-1]
        return {"client": client.name, "load": load.name, "error": last[:300], "took_s": took}
    finally:
        _remove(out)
    truth = server.truth(seen)
    return {
        "client": client.name,
        "load": load.name,
        "seen": asdict(seen),
        "truth": truth.as_dict(),
        "total_cpu_s": cpu_s,
        "took_s": took,
    }


def _wait(process: subprocess.Popen[bytes]) -> tuple[str, float]:
    """What it said on stderr, and CPU seconds with its children's; killed past its time."""
    timer = subprocess.Popen(["sleep", str(LIMIT_S)])
    os.set_blocking(process.stderr.fileno(), False)  # type: ignore[union-attr]
    words = b""
    while True:
        words = (words + (process.stderr.read() or b""))[-65536:]  # type: ignore[union-attr]
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if timer.poll() is not None:
            os.killpg(process.pid, 9)
            words = b"it did not end within %d s" % LIMIT_S
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    words += process.stderr.read() or b""  # type: ignore[union-attr]
    process.stderr.close()  # type: ignore[union-attr]
    timer.kill()
    timer.wait()
    return words.decode("utf-8", "replace"), usage.ru_utime + usage.ru_stime


def _remove(out: Path) -> None:
    for path in BENCH.glob(f"{out.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def complete(row: dict[str, Any], base_s: float) -> None:
    """Add the errors against the truth, and CPU microseconds a chunk."""
    if "error" in row:
        return
    seen, truth = row["seen"], row["truth"]
    row["error_of"] = {
        "ttft_ms": None if seen["ttft_ms"] is None else seen["ttft_ms"] - truth["ttft_ms"],
        **{
            name: None if seen[name] is None else seen[name] / truth[name] - 1
            for name in ("itl_ms", "itl_p99_ms", "tok_s")
        },
    }
    if "flood" in row["load"] and seen["t0"] is None:
        # over a whole run the sockets' buffers hide when a client took what the server sent
        row["error_of"]["tok_s"] = row["error_of"]["itl_ms"] = None
    if seen["cpu_s"] is not None:
        row["us_per_chunk"] = 1e6 * seen["cpu_s"] / seen["chunks"]
    else:
        # a short point can cost less than the start of a client varies
        under_load = row["total_cpu_s"] - base_s
        row["us_per_chunk"] = 1e6 * under_load / truth["chunks"] if under_load > 0 else None


def run(clients: Sequence[Client], points: Sequence[Load], realtime: bool) -> list[dict[str, Any]]:
    """Point by point, so that clients are compared within the same minute."""
    rows: list[dict[str, Any]] = []
    base: dict[str, float] = {}
    for client in clients:
        if client.requirements and client.is_installed and client.name != "aiohttp":
            idle = measure(client, Load(1, 1, 20, 1, 0.02, 0.1, 1.0), realtime)
            base[client.name] = idle.get("total_cpu_s", 0.0)
            if "error" in idle:
                print_row(idle)
                rows.append(idle)
    broken = {row["client"] for row in rows}
    for number, load in enumerate(points):
        for client in clients:
            quick = client.name.startswith(QUICK)
            if client.name in broken or not client.is_installed:
                continue
            if number >= PEER_POINTS and not quick:
                continue
            row = measure(client, load, realtime)
            complete(row, base.get(client.name, 0.0))
            print_row(row)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two points, 2 s, no peers")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a point")
    parser.add_argument("--clients", help="names that start with one of these, comma-separated")
    parser.add_argument("--points", help="such as '512 x 50/s,32 x flood'")
    parser.add_argument("--realtime", action="store_true", help="SCHED_FIFO, on a busy machine")
    parser.add_argument("--out", type=Path, help="where the JSON goes; a full run: latest.json")
    parser.add_argument("--markdown", type=Path, nargs="?", const=LATEST, help="render a result")
    options = parser.parse_args()
    if options.markdown:
        print(render_markdown(json.loads(options.markdown.read_text())))
        return
    build()
    seconds = 2.0 if options.quick else options.seconds
    clients, points = every(), list_points(seconds)
    if options.quick:
        clients = [c for c in clients if c.name.startswith(QUICK)]
        points = [paced(128, seconds=seconds), flood(32, seconds=seconds)]
    if options.clients:
        clients = [c for c in clients if c.name.startswith(tuple(options.clients.split(",")))]
    if options.points:
        points = [p for p in points if p.name in options.points.split(",")]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "load_before": os.getloadavg()[0],
        },
        "seconds": seconds,
        "missing": {c.name: _why_missing(c) for c in clients if not c.is_installed},
        "rows": run(clients, points, options.realtime),
    }
    print_summary(result)
    full = not (options.quick or options.clients or options.points)
    out = options.out or (LATEST if full else BENCH / "last.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {out}")


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def _why_missing(client: Client) -> str:
    reason = BENCH / client.folder / "reason"
    return reason.read_text() if reason.exists() else "python -m benchmarks.install was not run"


if __name__ == "__main__":
    main()
