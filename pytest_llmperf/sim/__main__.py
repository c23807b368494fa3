"""``python -m pytest_llmperf.sim``: a simulated server for any client, and how good it is."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.pipe import end_with_reader
from pytest_llmperf.sim.faults import FAULTS
from pytest_llmperf.sim.parameters import (
    DEFAULT_PROFILE,
    PARAMETERS,
    parse_parameters,
    parse_spec,
    split_query,
)


def main(arguments: list[str] | None = None, prog: str = "python -m pytest_llmperf.sim") -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=prog, description="A simulated server for any client, and how good it is."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{serve,residuals}")
    serve = commands.add_parser(
        "serve",
        help="serve a simulated model",
        description="serve a simulated model to any client",
        usage="%(prog)s [PROFILE] [--host HOST] [--port PORT] [--baselines DIR] "
        "[--PARAMETER VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="faults: KIND[:VALUE][@WHEN[,WHEN]], WHEN is request:N, request:N+, token:N, "
        "total:N or time:SECONDS\n" + "\n".join(f"  {k:13} {v}" for k, v in FAULTS.items()),
    )
    serve.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    serve.add_argument(
        "--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)"
    )
    group = serve.add_argument_group(
        "parameters", "as in --llm-url: sim:PROFILE?speed=0.9&kv_tokens=1000000"
    )
    for name, parameter in PARAMETERS.items():
        option, text = f"--{name.replace('_', '-')}", parameter.text.replace("%", "%%")
        group.add_argument(
            option, action="append", dest=name, default=[], metavar="VALUE", help=text
        )
    text = "the model beside its profile's numbers"
    residuals = commands.add_parser("residuals", help=text, description=text)
    for command in (serve, residuals):
        command.add_argument(
            "profile", nargs="?", default=DEFAULT_PROFILE,
            help="hardware profile that is played (default: %(default)s)",
        )  # fmt: skip
        command.add_argument(
            "--baselines", type=Path, default=Path("baselines"), metavar="DIR",
            help="your own profiles (default: %(default)s)",
        )  # fmt: skip
    commands.add_parser("child")  # for process.py: reads what to serve from stdin
    options = parser.parse_args(arguments)
    try:
        if options.command == "child":
            return _child()
        return _serve(options) if options.command == "serve" else _residuals(options)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 4


def _serve(options: argparse.Namespace) -> int:
    from pytest_llmperf.sim.server import SimServer, bind

    profile, _, query = options.profile.partition("?")
    given = [(name, text) for name in PARAMETERS for text in getattr(options, name)]
    parameters = parse_parameters([*split_query(query), *given], profile)
    server = SimServer(parameters, options.baselines)
    listener = bind(options.host, options.port)
    url = f"http://{options.host}:{listener.getsockname()[1]}"

    def ready() -> None:
        print(f"simulated {server.served.model} ({server.served.profile}) on {url}", flush=True)

    server.run(listener, ready)
    return 0


def _residuals(options: argparse.Namespace) -> int:
    from pytest_llmperf.baseline.file import load
    from pytest_llmperf.baseline.profiles import find_profile
    from pytest_llmperf.sim.expected import residuals
    from pytest_llmperf.sim.profile import ProfileTables

    baseline = load(find_profile(options.profile, options.baselines))
    fit = residuals(ProfileTables.from_baseline(baseline))
    print(f"{'cell':18} {'metric':14} {'report':>10} {'model':>10} {'off':>7}")
    for r in fit.residuals:
        print(f"{r.cell.id:18} {r.metric:14} {r.report:10.6g} {r.expected:10.6g} {r.off:+7.1%}")
    print(f"\n{len(fit.corrections)} corrections, where the model alone misses the report")
    for c in fit.corrections:
        print(f"{c.cell.id:18} {c.what}: {c.model:.6g} -> {c.corrected:.6g} {c.unit}")
    print(f"\n{len(fit.over_capacity)} cells over capacity")
    print(" ".join(Cell("decode", *key).id for key in sorted(fit.over_capacity)))
    return 0


def _child() -> int:
    """Serve what the line on stdin says, until stdin ends; the answer on stdout is a JSON line."""
    from pytest_llmperf.sim.server import SimServer, bind, end_with_parent

    # unbuffered: the watcher must see the end of the pipe, and nothing before it
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 1
        line += byte
    order = json.loads(line)
    parameters = parse_spec(order["spec"])
    if parameters.profile is None:
        parameters = replace(parameters, profile=order["hardware"])
    server = SimServer(parameters, Path(order["baselines"]))
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    end_with_parent(server.stop)
    server.run(
        listener,
        lambda: print(json.dumps({"url": url, "profile": server.served.profile}), flush=True),
    )
    return 0


if __name__ == "__main__":
    sys.exit(end_with_reader(main))
