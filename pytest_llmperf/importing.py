"""``llmperf import``: results of another tool as a baseline of their own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_import(commands: Subparsers) -> None:
    """Register the subcommand; its parsed arguments carry ``run``, which returns the exit code."""
    parser = commands.add_parser(
        "import",
        help="make a baseline of a result file of llm-inference-bench",
        description="Make baselines/PROFILE.yaml of a result file of llm-inference-bench "
        "(llm_decode_bench.py --output). What the file does not tell is said, not invented.",
    )
    parser.add_argument("file", type=Path, metavar="RESULTS.json")
    parser.add_argument("profile", metavar="PROFILE", help="name of the new hardware profile")
    parser.add_argument(
        "--baselines-dir", type=Path, default=Path("baselines"), metavar="DIR", help="where it goes"
    )
    parser.set_defaults(
        run=lambda given: import_results(given.file, given.profile, given.baselines_dir)
    )


def import_results(file: Path, profile: str, baselines_dir: Path) -> int:
    """Write the profile and say what of the file is not in it.

    Returns:
        0; or 1 when nothing was written, with the reason on stderr.
    """
    from pytest_llmperf.baseline import ancestor, store
    from pytest_llmperf.baseline.file import dumps
    from pytest_llmperf.baseline.profiles import profile_path, read_text
    from pytest_llmperf.errors import ConfigError

    try:
        path = profile_path(profile, baselines_dir)
        if path.exists():
            raise ConfigError(f"{path}: exists; choose another name, or delete it first")
        found = ancestor.read_results(read_text(file), str(file), profile)
        store.write(path, dumps(found.baseline), None)
    except ConfigError as error:
        print(f"llmperf: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {len(found.baseline.cells)} cells from {file}")
    for line in found.left_out:
        print(f"  not there: {line}")
    print("Add gpu and gpu_count under hardware and match, so that no other machine is compared.")
    return 0
