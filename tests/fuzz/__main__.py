"""``python -m tests.fuzz --minutes 20``: see README.md in this folder."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")


def main() -> int:
    """Fuzz every target at the same time, one process each; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="for how long (default 20)")
    parser.add_argument("--target", choices=("stream", "metrics"), action="append")
    parser.add_argument("--into", type=Path, help="folder for new inputs and findings")
    args = parser.parse_args()
    folder = args.into or Path(tempfile.mkdtemp(prefix="llmperf-fuzz-"))
    print(f"inputs and findings go to {folder}", flush=True)
    runs = []
    for target in args.target or ("stream", "metrics"):
        found = folder / target
        found.mkdir(parents=True, exist_ok=True)
        flags = [f"-max_total_time={round(args.minutes * 60)}", "-max_len=16384", "-timeout=120",
                 "-rss_limit_mb=2048", f"-artifact_prefix={found}-"]  # fmt: skip
        command = [sys.executable, "-m", "tests.fuzz.one", target, str(found), str(CORPUS / target)]
        with (folder / f"{target}.log").open("w") as log:
            runs.append(subprocess.Popen([*command, *flags], stdout=log, stderr=log))
    codes = [run.wait() for run in runs]
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log}\n{log.read_text(errors='replace')[-1500:]}")
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
