"""Writes the pages of docs/ that are made from code: ``python tools/reference.py [--check]``."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_llmperf.config.options import OPTIONS, Option
from pytest_llmperf.model.metrics import METRICS, Metric
from pytest_llmperf.sim import __main__ as sim
from pytest_llmperf.sim.faults import FAULTS
from pytest_llmperf.sim.parameters import PARAMETERS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- made by tools/reference.py: change the code, then run it -->"
PROFILES = ("rtxpro6k_x4", "h200nvl_x2")


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text for a cell of a table: a bar would end it, an angle bracket is no tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def options() -> str:
    """Every option, with its ini key."""

    def row(option: Option) -> tuple[str, ...]:
        takes = option.metavar or "\\|".join(option.choices)
        name = f"`{option.cli}`" + (f" {takes}" if takes else "")
        return name, f"`{option.key}`" if option.ini else "—", _cell(option.help)

    return f"""\
# Options

{NOTE}

Every option is in one group of `pytest --help`. Where an ini key is given it may stand in
`pytest.ini`, in `[tool.pytest.ini_options]` of `pyproject.toml`, or in any other place pytest reads
its configuration from; keys of options that may be repeated take one value a line. What decides, in
this order: command line, the marker `@pytest.mark.llm`, the settings of the profile, the ini file,
the default. A profile does not decide the duration: a short run may be compared with a long one.

Token counts may be written `8192`, `8K` or `8k`; K is 1024. Lists are separated by commas.

{_table(("Option", "ini key", "Meaning"), [row(option) for option in OPTIONS])}

`--hardware` is short for `--llm-hardware` unless the project has an option of that name itself.

The API key is best given in the environment variable `LLMPERF_API_KEY`, or as a file: what
stands on a command line is in the list of processes.
"""


def metrics() -> str:
    """The table of metrics: direction, gate, floors."""

    def row(metric: Metric) -> tuple[str, ...]:
        floor = f"{metric.floor:.0%}"
        if metric.floor_abs:
            floor += f" or {metric.floor_abs:g} {metric.unit}"
        return (
            f"`{metric.name}`",
            metric.label,
            metric.better,
            " and ".join(metric.phases),
            " and ".join(metric.gated) or "by option",
            floor,
            f"{metric.spread:.1%}",
            f"{metric.observed_beyond:.0%}",
        )

    headings = (
        "Name", "Shown as", "Better", "Cells", "Gated in", "Floor", "Expected spread",
        "Observed beyond",
    )  # fmt: skip
    return f"""\
# Metrics in numbers

{NOTE}

What each of them means is in [Metrics and formulas](metrics.md), how they are judged in
[Verdicts and tolerances](verdicts.md).

{_table(headings, [row(metric) for metric in METRICS.values()])}

*Floor*: no smaller change of one cell is ever called one; of two, the wider holds. *Expected
spread*: standard deviation between runs, until runs tell; twice that at one and two streams.
*Observed beyond*: with more noise than this the metric is shown, not judged. *By option*:
`--llm-gate NAME`.
"""


def simulator() -> str:
    """The simulator's parameters."""
    rows = [(f"`{name}`", _cell(parameter.text)) for name, parameter in PARAMETERS.items()]
    return f"""\
# The simulator

{NOTE}

`--llm-url sim`, `sim:PROFILE` or `sim:PROFILE?NAME=VALUE&…` starts an OpenAI-compatible server on
loopback, in its own process, calibrated from the profile's baseline. It is a model of an engine,
not a replay: it decides about admission, batching and timing from a scheduler with KV blocks, a
prefix cache, chunked prefill and preemption. How near it comes to the published numbers is in
[How good is the simulator?](../explanation/residuals.md). Whatever it shows is stamped *simulated*,
goes only into profiles that are marked so, and is compared with a real machine's only where it
plays that one.

{_table(("Parameter", ""), rows)}

What is not said is as the profile has it. `fault` may be repeated, and so may what holds for some
contexts or concurrencies; what can go wrong is in [Faults](faults.md). Quote the URL in a shell: it
holds `?` and `&`.

## Noise

Real servers are not as fast at every start, in every minute and with every text, and a gate has to
live with that. Each kind of it has a parameter; they may be combined.

| What real servers do | Parameter |
| --- | --- |
| The whole run is a little faster or slower | `noise_run=0.02` |
| One and two streams are noisier than the rest | `noise_conc=1:0.1,2:0.1,4+:0.01` |
| Each cell has noise of its own | `noise_cell=0.01` |
| Most starts are alike, a few far off | `noise_cell=0.01&noise_tails=t3` |
| One start in ten comes up 4 % slow | `slow_start=0.1:0.04` |
| Speed drifts in the first ten minutes | `drift=0.02:600` |
| After 90 s of idling it is 40 % slower for 30 s | `idle_fall=0.4:90:30` |
| A GPU is throttled now and then | `throttle=0.1:0.2:5` |
| Texts differ in how well they are drafted | `acceptance_spread=0.2` |
| The prefix cache does not work | `prefix_cache=0` |
| A proxy passes the stream on in bursts | `fault=buffer:16384` |

A factor on speed is exp(spread x draw). The draws depend on `seed` and `start` alone, so a start
can be had again. Every run of `--llm-runs`, and every further start that confirms a breach, is
another `start` of the same seed. With `llmperf sim serve` these are options, which `--llm-serve`
fills in:

```console
$ pytest perf_tests --llm-serve "llmperf sim serve --port {{port}} --seed {{run}} --start {{start}}"
```

Of the runs of one seed, `noise`, `noise_run`, `noise_conc`, `noise_cell`, `slow_start` and `drift`
make starts differ; the others are met within each. What a right client must measure at a start is
known without a clock, `acceptance_spread` apart, whose mean it is.

For other clients it can be started by itself; every parameter is an option too:

```console
$ llmperf sim serve rtxpro6k_x4 --port 8000 --seed 7 --fault "error@request:3"
```

The model beside the numbers of its profile:

```sh
llmperf sim residuals rtxpro6k_x4
```
"""


def faults() -> str:
    """The faults of the simulator."""
    rows = [(f"`{kind}`", _cell(what)) for kind, what in FAULTS.items()]
    return f"""\
# Faults of the simulator

{NOTE}

Written `fault=KIND[:VALUE][@WHEN[,WHEN]]`, and repeatable. WHEN is `request:2` (the second
completion request; also `2+` and `2-5`), `token:50` (once the request has made 50 tokens),
`total:5000` (once the server has) or `time:3` (seconds after the server came up). Several must all
hold; without any the fault always holds. Example: `sim?fault=crash@total:5000`.

{_table(("Kind", "What happens"), rows)}

The other parameters are in [The simulator](simulator.md).
"""


def residuals() -> str:
    """The simulator beside the published reports."""
    parts = []
    for profile in PROFILES:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            sim.main(["residuals", profile, "--baselines", str(ROOT / "baselines")])
        text = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
        parts.append(f"## {profile}\n\n```text\n{text.strip()}\n```\n")
    return f"""\
# How good is the simulator?

{NOTE}

For each shipped profile: every figure of the published report, what the simulator's model gives for
the same cell (computed without a clock), and how far it is off. Where the model alone misses the
report a correction is stored with the cell; all of them are listed. The command that prints this is
`python -m pytest_llmperf.sim residuals PROFILE`.

In the reports themselves concurrency / ITL and total tok/s of a cell disagree by up to 6 %: ITL is
a median over few requests. The model cannot agree with both, and follows the throughput.

{"".join(parts).rstrip()}
"""


PAGES: dict[str, Callable[[], str]] = {
    "reference/options.md": options,
    "reference/metric-table.md": metrics,
    "reference/simulator.md": simulator,
    "reference/faults.md": faults,
    "explanation/residuals.md": residuals,
}


def stale() -> list[str]:
    """Pages that differ from what the code says now."""
    return [
        name
        for name, make in PAGES.items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != make()
    ]


def main() -> int:
    """Write the pages, or (``--check``) name those that are behind and exit 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        behind = stale()
        print("\n".join(behind))
        return int(bool(behind))
    for name, make in PAGES.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
