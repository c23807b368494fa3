"""``python -m tests.engines.gateway_table``: one cell of a real llama.cpp, directly and behind each
gateway, as the table of docs/reference/engines.md. Two minutes; needs both installed."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.model.result import Measurement, RunResult
from pytest_llmperf.report.json import read
from tests.engines.job import run_job
from tests.support.gateways import GATEWAYS, Gateway, in_front_of
from tests.support.llamacpp import LlamaServer

CELL = "decode[512-c2]"
ARGS = (
    *("--llm-contexts=512", "--llm-concurrency=2", "--llm-duration=10", "--llm-settle=1"),
    *("--llm-max-tokens=400", "--llm-report=json"),
)
HEADINGS = (
    "", "Told as", "Gauges", "Prompts counted", "TTFT ms", "ITL ms", "tok/s", "Notes of the cell",
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a run says of a server and its one decode cell."""

    run: RunResult
    cell: Measurement

    def row(self, name: str) -> tuple[str, ...]:
        """The cells of its line; a dash is what could not be measured."""
        server = self.run.server
        assert server is not None
        codes = {notice.code for notice in self.cell.warnings}
        return (
            name,
            server.engine,
            "yes" if self.cell.server and self.cell.server.running_mean is not None else "no",
            "no" if "prompt-uncounted" in codes or server.engine == "openai" else "yes",
            *(_number(self.cell.value(name)) for name in ("ttft_ms", "itl_ms", "total_tok_s")),
            self.cell.reason or ", ".join(f"`{code}`" for code in sorted(codes)) or "none",
        )


def look(url: str, *args: str) -> Seen:
    """Measure the cell at ``url`` as a user does.

    Raises:
        RuntimeError: there is no such cell in the results; with what pytest said.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = run_job(Path(folder), url, *ARGS, *args)
        if CELL not in job.cells:
            raise RuntimeError(job.text)
        run = read(Path(folder) / "llmperf-report/results.json")
    record = next(record for record in run.cells if record.cell == CELL)
    assert record.measurement is not None
    return Seen(run, record.measurement)


def look_behind(gateway: Gateway, server: str, *args: str) -> Seen:
    """The same through a gateway that is started for it."""
    with in_front_of(server, gateway) as url:
        key = (f"--llm-header=Authorization: Bearer {gateway.key}",) if gateway.key else ()
        return look(url, *key, *args)


def main() -> int:
    """Print the table; a gateway that is not installed is left out, and named."""
    show(HEADINGS)
    show(("---",) * len(HEADINGS))
    with ExitStack() as stack:
        server = stack.enter_context(LlamaServer(n_ctx=8192, slots=2)).url
        show(look(server).row("none"))
        for gateway in GATEWAYS.values():
            if not gateway.is_installed:
                print(f"{gateway.name} is not installed", file=sys.stderr)
                continue
            plain = look_behind(gateway, server)
            show(plain.row(gateway.name))
            assert plain.run.server is not None
            if plain.run.server.engine == "openai":
                told = f"--llm-metrics-url={server}/metrics"
                name = f"{gateway.name}, `--llm-metrics-url`"
                show(look_behind(gateway, server, told).row(name))
    return 0


def show(row: tuple[str, ...]) -> None:
    """Print a line of the table."""
    print("| " + " | ".join(row) + " |", flush=True)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
