"""Published speed-test reports, as text, to baselines.

``python -m pytest_llmperf.baseline.importer REPORT.txt PROFILE > baselines/PROFILE.yaml``
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from pytest_llmperf.baseline.file import dumps
from pytest_llmperf.baseline.profiles import read_text
from pytest_llmperf.baseline.schema import (
    Baseline,
    BaselineSettings,
    CellBaseline,
    Hardware,
    Match,
    OverCapacity,
    Run,
)
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.grid import Cell, parse_tokens
from pytest_llmperf.model.settings import METHOD

RUN_ID = "report"
"""The reports have no date; their one run is called this."""

_HEADINGS = (
    "Hardware",
    "Engine",
    "Run",
    "Launch command",
    "Prefill",
    "Sustained decode",
    "All measurements",
)
_COLUMNS = {
    "Per request tok/s": "per_request_tok_s",
    "TTFT": "ttft_ms",
    "Time between tokens": "itl_ms",
    "Average active requests": "active_avg",
    "Completed requests": "completed",
    "Output tokens": "output_tokens",
    "Measured for": "measured_s",
}
_PHASES = {"Prefill": "prefill", "Sustained decode": "decode"}
_UNKNOWN = "—"
_GLUED = "Prefill\nprompt tok/s by context length"
"""This heading has the end of the launch command before it and the first bar after it."""


def read_number(text: str) -> int | float:
    """Read a figure as reports write them: ``18.5K``, ``1,037.5``, ``442 ms``, ``30.0 s``.

    K is 1000 here. A figure with decimals is a float, any other an int.

    Raises:
        ConfigError: when it is no figure.
    """
    match = re.fullmatch(r"(\d[\d,]*(?:\.\d+)?)(K?)(?: (?:ms|s))?", text.strip())
    if match is None:
        raise ConfigError(f"report: {text!r} is not a figure")
    digits = match[1].replace(",", "")
    if match[2]:
        return int(Decimal(digits) * 1000)
    return float(digits) if "." in digits else int(digits)


def read_report(text: str, profile: str) -> Baseline:
    """Turn a report into the baseline of ``profile``, with every figure and fact of it.

    Raises:
        ConfigError: when it is no such report, or its tables disagree with each other.
    """
    sections = _split(text)
    hardware, engine, run = (_facts(sections[name]) for name in _HEADINGS[:3])
    note, command = _launch(sections["Launch command"])
    rows = _table(sections["All measurements"])
    _agree(rows, sections)
    max_tokens = int(read_number(run["Max output"].removesuffix(" tokens")))
    cells = {_cell(row).id: _read_row(row, max_tokens) for row in rows}
    parsed = [_cell(row) for row in rows]
    decode = [cell for cell in parsed if cell.phase == "decode"]
    gpu, count = hardware["GPU"], int(hardware["GPU count"])
    return Baseline(
        hardware=Hardware(
            profile=profile,
            type=hardware["Type"],
            gpu=gpu,
            gpu_count=count,
            vram_gb=int(hardware["VRAM"].split(" GB")[0]),
            os=hardware["OS"],
        ),
        match=Match(
            gpu=gpu,
            gpu_count=count,
            model=_argument(command, "serve"),
            served_model=run["Served model"],
            engine=engine["Engine"],
        ),
        settings=BaselineSettings(
            duration_s=int(run["Time per measurement"].removesuffix(" s")),
            max_tokens=max_tokens,
            method=METHOD,
            prompts="shared",
            capacity="reserved",
            contexts=list(dict.fromkeys(cell.context for cell in decode)),
            concurrency=list(dict.fromkeys(cell.concurrency for cell in decode)),
            prefill_contexts=[cell.context for cell in parsed if cell.phase == "prefill"],
        ),
        runs={
            RUN_ID: Run(
                engine=engine["Engine"],
                engine_version=engine["Version"],
                quantization=engine["Quantization"],
                backend=engine["Backend"],
                repository=engine["Repository"],
                build=engine["Build"],
                commit=engine.get("Commit"),
                served_model=run["Served model"],
                revision=run["Revision"],
                bench=run["Benchmark tool"],
                decode_test=run["Decode test"],
                prefill_mode=run["Prefill mode"],
                max_model_len=int(_argument(command, "--max-model-len")),
                launch_command=command,
                note=note,
            )
        },
        cells=cells,
    )


def _split(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.replace(_GLUED, "\nPrefill\n").splitlines():
        if line in _HEADINGS:
            lines = sections.setdefault(line, [])
        else:
            lines.append(line)
    if missing := [name for name in _HEADINGS if name not in sections]:
        raise ConfigError(f"report: no section {missing[0]!r}; is this the text of a report?")
    return sections


def _facts(lines: Sequence[str]) -> dict[str, str]:
    items = [line.removeprefix("- ") for line in lines if line.strip()]
    return dict(zip(items[::2], items[1::2], strict=True))


def _launch(lines: Sequence[str]) -> tuple[str | None, str]:
    """The comment above the command, if any, and the command."""
    notes = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    command = "\n".join(line for line in lines if not line.startswith("# "))
    return "\n".join(notes) or None, command.strip()


def _argument(command: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){re.escape(name)}\s+(\S+)", command)
    if match is None:
        raise ConfigError(f"report: no {name!r} in the launch command")
    return match[1]


def _table(lines: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a section's table; its first line may be glued to the text before it."""
    table = [line[line.index("|") :] for line in lines if "|" in line]
    header, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in table)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _cell(row: dict[str, str]) -> Cell:
    phase, context = _PHASES[row["Phase"]], parse_tokens(row["Context"])
    return Cell(phase, context, int(row["Requests at once"]))  # type: ignore[arg-type]


def _read_row(row: dict[str, str], max_tokens: int) -> CellBaseline:
    cell = _cell(row)
    if row["Status"] == "Over capacity":
        needs = cell.concurrency * (cell.context + max_tokens)
        return CellBaseline(runs=[RUN_ID], over_capacity=OverCapacity(needs=needs))
    if row["Status"] != "Valid":
        raise ConfigError(f"report: {cell.id} has the status {row['Status']!r}")
    speed = "prefill_tok_s" if cell.phase == "prefill" else "total_tok_s"
    columns = {"Total tok/s": speed, **_COLUMNS}
    figures = {
        name: [read_number(row[column])]
        for column, name in columns.items()
        if row[column] != _UNKNOWN
    }
    return CellBaseline.model_validate({"runs": [RUN_ID], **figures})


def _agree(rows: Sequence[dict[str, str]], sections: dict[str, list[str]]) -> None:
    """Hold the matrix and the prefill chart against the table of all measurements."""
    matrix = {row["Context"]: row for row in _table(sections["Sustained decode"])}
    chart = " ".join(sections["Prefill"])
    for row in rows:
        context, speed = row["Context"], row["Total tok/s"]
        if row["Phase"] == "Prefill":
            expected = f"{context} context{speed.removesuffix('.0')}{row['TTFT']} TTFT"
            agrees = expected in chart
        else:
            over = row["Status"] == "Over capacity"
            expected = row["Status"] if over else f"{speed}{row['TTFT']} TTFT"
            agrees = matrix[context][row["Requests at once"]] == expected
        if not agrees:
            raise ConfigError(f"report: {_cell(row).id}: the charts do not say {expected!r}")


def main(arguments: Sequence[str]) -> int:
    """Write the baseline of the report named first, under the profile name given second."""
    if len(arguments) != 2:
        print(f"usage: python -m {__spec__.name} REPORT.txt PROFILE", file=sys.stderr)
        return 2
    try:
        baseline = read_report(read_text(Path(arguments[0])), arguments[1])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(dumps(baseline))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
