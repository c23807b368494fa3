"""The ``llmperf`` command: what needs no server and no pytest session. One function a command."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_llmperf import __version__
from pytest_llmperf.model.errors import ConfigError, LlmPerfError
from pytest_llmperf.model.pipe import end_with_reader

if TYPE_CHECKING:
    from pytest_llmperf.model.result import RunResult

OK, BAD_INPUT = 0, 4
"""Exit codes: as pytest's own for passed and usage error."""

_NEXT = """\
Next, without a server: pytest perf_tests --llm-url sim --hardware rtxpro6k_x4 --llm-duration 3 \
--llm-contexts 8K --llm-concurrency 1,4
Then a profile of your own, of five server starts: pytest perf_tests --hardware NAME \
--update-baselines --llm-runs 5 --llm-serve "vllm serve MODEL --port {port}\""""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a regression, 4 for bad input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return end_with_reader(lambda: _run(given))


def _run(given: list[str]) -> int:
    if given[:1] == ["sim"]:
        from pytest_llmperf.sim.__main__ import main as simulate

        try:
            return simulate(given[1:], prog="llmperf sim")
        except SystemExit as end:  # argparse's own code for bad usage is pytest's for an interrupt
            if end.code != 2:
                raise
            return BAD_INPUT
    options = _parser().parse_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):  # one that takes no umlaut is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
    except LlmPerfError as error:
        print(f"llmperf: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"llmperf: {where}{error.strerror}", file=sys.stderr)
        return BAD_INPUT
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(BAD_INPUT, f"llmperf: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="llmperf",
        description="Projects, profiles, reports and comparisons of pytest-llmperf. Measuring is "
        "pytest's: pytest perf_tests --llm-url URL --hardware PROFILE",
    )
    parser.add_argument("--version", action="version", version=f"pytest-llmperf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    made = command("init", init, "write perf_tests/, an empty baselines/ and a commented config")
    made.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="FOLDER",
        help="where to (default: here); what is there already stays",
    )  # fmt: skip

    made = command("report", report, "render results files again; several side by side in one HTML")
    made.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS.json", help="what runs have written"
    )
    _add_outputs(made)

    made = command(
        "compare",
        compare,
        "judge results against a baseline or earlier results; exit 0: no regression, 1: a "
        "regression or nothing comparable, 4: bad input",
    )
    made.add_argument(
        "reference", nargs="+", type=Path, metavar="REFERENCE",
        help="a baseline .yaml, or results of one run or more",
    )  # fmt: skip
    made.add_argument("results", type=Path, metavar="RESULTS.json", help="the results to judge")
    made.add_argument(
        "--confirm", action="append", default=[], type=Path, metavar="RESULTS.json",
        help="results of a further run of the same, as of another server start: the attempts at a "
        "cell in all of them are judged together; repeatable",
    )  # fmt: skip
    made.add_argument(
        "--tolerance", action="append", default=[], metavar="METRIC[@CELL]=FRACTION",
        help="override a tolerance: ttft_ms=0.3, or itl_ms@decode[8K-c1]=0.2; repeatable",
    )  # fmt: skip
    made.add_argument(
        "--limit", action="append", default=[], metavar="METRIC[@PATTERN]=VALUE",
        help="an absolute limit, in the metric's unit: ttft_p99_ms@decode[8K-*]=500; repeatable",
    )  # fmt: skip
    made.add_argument(
        "--gate", action="append", default=[], metavar="METRIC",
        help="judge this metric too; repeatable",
    )  # fmt: skip
    made.add_argument(
        "--allow-mismatch", action="store_true",
        help="compare although model, engine or settings differ",
    )  # fmt: skip
    _add_outputs(made)

    command("schema", schema, "print the JSON Schema of results.json")

    made = command("profiles", profiles, "list the hardware profiles")
    _add_baselines(made)

    made = command("import", import_, "make a new profile of a result file of llm-inference-bench")
    made.add_argument(
        "results", type=Path, metavar="RESULTS.json", help="what llm-inference-bench has written"
    )
    made.add_argument("profile", metavar="PROFILE", help="name of the new profile")
    _add_baselines(made)

    commands.add_parser("sim", help="the simulator: llmperf sim serve, llmperf sim residuals")
    return parser


def _add_baselines(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="DIR",
        help="directory of your own profiles (default: %(default)s)",
    )  # fmt: skip


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    for name, text in (("html", "HTML"), ("md", "Markdown"), ("json", "JSON")):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=f"write {text} to PATH")


def init(options: argparse.Namespace) -> int:
    """Write a user's project."""
    from pytest_llmperf.commands.init import write_project

    written = write_project(options.folder)
    for what in ("created", "changed", "kept"):
        for path in getattr(written, what):
            print(f"{what:7} {path}")
    print(_NEXT)
    return OK


def report(options: argparse.Namespace) -> int:
    """Render results files: to the terminal, or to the files named."""
    from pytest_llmperf.report.json import read

    runs = [read(path) for path in options.results]
    if len(runs) > 1 and (options.md or options.json):
        raise ConfigError("several results go side by side into one --html only")
    _write(runs, [str(path) for path in options.results], options)
    return OK


def compare(options: argparse.Namespace) -> int:
    """Judge results without a server."""
    from pytest_llmperf.commands.compare import compare as judge
    from pytest_llmperf.config.resolve import parse_gates, parse_limits, parse_tolerances
    from pytest_llmperf.model.settings import Settings

    settings = Settings(
        tolerances=parse_tolerances(options.tolerance),
        limits=parse_limits(options.limit),
        gate=parse_gates(options.gate),
    )
    compared = judge(
        options.reference,
        options.results,
        settings,
        confirmations=options.confirm,
        allow_mismatch=options.allow_mismatch,
    )
    _write([compared.result], [str(options.results)], options, always=True)
    if compared.empty:
        print(f"llmperf: {compared.empty}", file=sys.stderr)
    return compared.exit_code


def schema(options: argparse.Namespace) -> int:
    """Print the schema."""
    from pytest_llmperf.report.json import schema_text

    print(schema_text(), end="")
    return OK


def profiles(options: argparse.Namespace) -> int:
    """List the profiles with what they were measured on."""
    from pytest_llmperf.baseline.file import load
    from pytest_llmperf.baseline.profiles import available_profiles, find_profile

    for name in available_profiles(options.baselines):
        try:
            path = find_profile(name, options.baselines)
            baseline = load(path)
        except ConfigError as error:
            print(f"{name}  {error}")
            continue
        hardware, wanted = baseline.hardware, baseline.match
        machine = f"{hardware.gpu_count or 1} x {hardware.gpu}" if hardware.gpu else "?"
        print(f"{name}  {machine}, {wanted.model}, {len(baseline.cells)} cells, {path}")
    return OK


def import_(options: argparse.Namespace) -> int:
    """Write the profile, and say what of the file is not in it."""
    from pytest_llmperf.baseline import ancestor, store
    from pytest_llmperf.baseline.file import dumps
    from pytest_llmperf.baseline.profiles import profile_path, read_text

    path = profile_path(options.profile, options.baselines)
    if path.exists():
        raise ConfigError(f"{path}: exists; choose another name, or delete it first")
    text = read_text(options.results)
    found = ancestor.read_results(text, str(options.results), options.profile)
    store.write(path, dumps(found.baseline), None)
    print(f"{path}: {len(found.baseline.cells)} cells from {options.results}")
    for line in found.left_out:
        print(f"  not in it: {line}")
    print("Add gpu and gpu_count under hardware and match, so that no other machine is compared.")
    return OK


def _write(
    runs: Sequence[RunResult], names: list[str], options: argparse.Namespace, always: bool = False
) -> None:
    """Write the files asked for; without any, or ``always``, the summary goes to the terminal."""
    from pytest_llmperf.report import html, terminal
    from pytest_llmperf.report.files import write_atomically
    from pytest_llmperf.report.publish import publish

    if always or not (options.html or options.md or options.json):
        for i, (run, name) in enumerate(zip(runs, names, strict=True)):
            if len(runs) > 1:
                print(f"\n{name}:" if i else f"{name}:")
            print(terminal.plain(terminal.render(run)))
    if options.html:
        write_atomically(options.html, html.render(runs, names=names if len(runs) > 1 else ()))
        print(f"wrote {options.html}")
    for name in ("md", "json"):
        if path := getattr(options, name):
            publish(runs[0], name, path)
            print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
