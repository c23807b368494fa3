"""What a report says, before it has a format: every format renders these same parts. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from functools import cached_property

from pytest_llmperf.model.grid import Cell, format_tokens
from pytest_llmperf.model.redact import redact_all
from pytest_llmperf.model.result import UNVOUCHED, CellRecord, Outcome, RunResult, Status
from pytest_llmperf.report.banner import Verdict, changed, verdict_of
from pytest_llmperf.report.cells import list_watched, status
from pytest_llmperf.report.hosts import describe_hosts
from pytest_llmperf.report.numbers import count

OVER_CAPACITY_NOTE = (
    "Over capacity: not run because this many requests at this context would exceed what the "
    "server can hold at once."
)
WARM_NOTE = (
    "TTFT of decode is measured with the prompt already in the server's cache, so it mostly "
    "excludes prefill."
)
MEDIANS_NOTE = (
    "Latencies are medians. Total tok/s is output across all simultaneous requests. A tolerance "
    "is also the smallest change its comparison can see."
)
TERMS_NOTE = (
    "Observed: compared, not judged. Weak: of fewer than three baseline runs, a stated tolerance "
    "in place of a measured one. UNGATED: the cell's speed could not be judged."
)
SIMULATED_NOTE = "Simulated: these numbers come from the built-in simulator, not from hardware."

_LABELS = {
    "gpu": "GPU",
    "gpu_count": "GPU count",
    "cpu": "CPU",
    "os": "OS",
    "vram_gb": "VRAM",
    "power_limit_w": "Power limit, W",
    "bench": "Benchmark tool",
}
_ENGINE_INFO = ("backend", "repository", "build", "commit", "driver")
_CAPACITY = {
    "reserved": "reserved: a cell needs room for every prompt and full answer",
    "shared": "shared: a cell needs room for its prompt once and every full answer",
    "try": "try: every cell within the model's limit is run",
}
_TITLE_INFO = ("quantization", "launch_command")

Fact = tuple[str, str]


class View:
    """A run, read for reporting. Every text in it is free of secrets."""

    def __init__(self, run: RunResult) -> None:
        self.run = RunResult.model_validate(redact_all(run.model_dump()))
        self.records = sorted(self.run.cells, key=lambda record: Cell.parse(record.cell).order)
        self._by_cell = {Cell.parse(record.cell): record for record in self.records}

    # Header

    @property
    def model(self) -> str:
        """The model as people know it: the last part of its root, or the served name."""
        server = self.run.server
        if server is None:
            return "unknown model"
        return (server.model_root or server.model).rstrip("/").rsplit("/", 1)[-1]

    @property
    def machine(self) -> str:
        """The hardware in a few words, or an empty string when nothing says what it is."""
        facts = self.run.hardware
        gpu, gpus, vram = facts.get("gpu"), facts.get("gpu_count"), facts.get("vram_gb")
        if not gpu:
            return self.run.profile or ""
        words = [str(gpu)]
        if isinstance(vram, int | float):
            each = vram / gpus if isinstance(gpus, int) and gpus else vram
            words.append(f"{each:g}GB")
        if gpus:
            words.append(f"×{gpus}")
        return " ".join(words)

    @property
    def title(self) -> str:
        if self.run.against:
            return f"A/B: {self.run.url} against {self.run.against}"
        return f"{self.model} on {self.machine}" if self.machine else self.model

    @property
    def reference(self) -> str:
        """What the cells were compared with, within a sentence."""
        return self.run.against or "the baseline"

    @property
    def date(self) -> str:
        return self.run.date.replace("T", " ")

    @property
    def engine(self) -> str:
        server = self.run.server
        return " ".join(part for part in (server.engine, server.version) if part) if server else ""

    @property
    def subtitle(self) -> str:
        server, parts = self.run.server, []
        if server is not None:
            model = self.model if self.run.against else None  # else in the title
            parts = [model, server.engine, server.version, self._quantization]
        contexts, levels = self.contexts, self.concurrency
        if contexts and levels:
            parts.append(
                f"{count(len(contexts), 'context')} ({_span(format_tokens, contexts)}) × "
                f"{count(len(levels), 'concurrency level')} ({_span(str, levels)})"
            )
        if self.prefills:
            names = ", ".join(format_tokens(Cell.parse(r.cell).context) for r in self.prefills)
            parts.append(f"prefill at {names}")
        return " · ".join(part for part in parts if part)

    @property
    def _quantization(self) -> str | None:
        server = self.run.server
        return self.run.run_info.get("quantization") or (server and server.quantization) or None

    # Sections of facts

    @property
    def hardware_facts(self) -> list[Fact]:
        facts = {"profile": self.run.profile, **self.run.hardware}
        if any(notice.code == UNVOUCHED for notice in self.run.warnings):
            facts["verified"] = "no: what the profile says, nothing seen at the server"
        return [
            (_label(key), self._vram if key == "vram_gb" else str(value))
            for key, value in facts.items()
            if value is not None
        ]

    @property
    def _vram(self) -> str:
        vram, gpus = self.run.hardware["vram_gb"], self.run.hardware.get("gpu_count")
        if not isinstance(vram, int | float):
            return str(vram)
        each = f" ({gpus} × {vram / gpus:g} GB)" if isinstance(gpus, int) and gpus > 1 else ""
        return f"{vram:g} GB{each}"

    @property
    def engine_facts(self) -> list[Fact]:
        server, info = self.run.server, self.run.run_info
        if server is None:
            return []
        facts: list[tuple[str, str | int | bool | None]] = [
            ("Engine", server.engine),
            ("Version", server.version),
            ("Quantization", self._quantization),
            *((_label(key), info.get(key)) for key in _ENGINE_INFO),
            ("Longest sequence", _tokens(server.max_model_len)),
            ("Most at once", server.max_num_seqs),
            ("KV cache", _tokens(server.kv_tokens)),
            ("KV source", server.kv_source),
            ("Speculative decoding", server.speculative),
            ("Prefix cache", server.prefix_cache),
        ]
        return [(label, _plain(value)) for label, value in facts if value is not None]

    @property
    def run_facts(self) -> list[Fact]:
        run, server, settings = self.run, self.run.server, self.run.settings
        facts: list[tuple[str, str | int | bool | None]] = [
            ("Date", self.date),
            ("Served model", server.model if server else None),
            ("Model root", server.model_root if server else None),
            ("URL", run.url or None),
            ("Compared with", run.against or None),
            ("Benchmark tool", f"pytest-llmperf {run.llmperf_version}"),
            ("Decode test", "Fixed duration"),
            ("Prefill mode", "Cold requests before the decode cells of a context"),
            ("Time per measurement", f"{settings.duration_s:g} s"),
            ("Max output", _tokens(settings.max_tokens)),
            ("Endpoint", settings.endpoint),
            ("Prompts", settings.prompts),
            ("Sampling", settings.sampling),
            ("Extra body", settings.extra_body or None),
            ("Capacity rule", _CAPACITY.get(settings.capacity, settings.capacity)),
            ("Reference text", settings.text_hash),
            ("Method", settings.method),
            *((f"Load of {host}", words) for host, words in describe_hosts(run.cells)),
            *(
                (_label(key), value)
                for key, value in run.run_info.items()
                if key not in (*_ENGINE_INFO, *_TITLE_INFO)
            ),
        ]
        return [(label, _plain(value)) for label, value in facts if value is not None]

    @property
    def launch_command(self) -> str | None:
        return self.run.run_info.get("launch_command")

    @property
    def notes(self) -> list[str]:
        """What to know about the run as a whole, beside that it is simulated."""
        run = self.run
        notes = [f"{finding.code}: {finding.text}" for finding in run.findings]
        if self.verdict.level != "fail":  # else in the banner
            notes += filter(None, [changed(run)])
        if run.interrupted:
            notes.append(f"Stopped early: {run.interrupted}")
        elif not run.finished:
            notes.append("Not finished: the run was still going, or was killed.")
        notes += [f"Failed by an assertion or error of its own: {t}" for t in run.failed_tests]
        notes += [f"{notice.code}: {notice.text}" for notice in run.warnings]
        # too good to be true is no failure, so nothing else would tell of it
        notes += [f"{r.cell}: {note}" for r in self.having(Outcome.IMPROVED) for note in r.notes]
        notes += [f"watched: {text}" for text in self.watched]
        notes += run.server.notes if run.server else []
        if self.having(Outcome.UNGATED):
            notes.append("ungated: the speed was too noisy to judge; a longer --llm-duration helps")
        if run.stale:
            notes.append(
                f"Stale: {', '.join(run.stale)} in the baseline, no longer in the grid; "
                "--llm-prune deletes."
            )
        return notes

    # The matrix

    @cached_property
    def prefills(self) -> list[CellRecord]:
        return [record for cell, record in self._by_cell.items() if cell.phase == "prefill"]

    @cached_property
    def contexts(self) -> list[int]:
        """Contexts (tokens) with at least one decode cell in this run."""
        return sorted({cell.context for cell in self._by_cell if cell.phase == "decode"})

    @cached_property
    def concurrency(self) -> list[int]:
        return sorted({cell.concurrency for cell in self._by_cell if cell.phase == "decode"})

    def decode(self, context: int, concurrency: int) -> CellRecord | None:
        return self._by_cell.get(Cell("decode", context, concurrency))

    def prefill(self, context: int) -> CellRecord | None:
        return self._by_cell.get(Cell("prefill", context))

    @property
    def over_capacity(self) -> list[CellRecord]:
        return [record for record in self.records if status(record) is Status.OVER_CAPACITY]

    # Verdicts

    @property
    def counts(self) -> list[tuple[Outcome, int]]:
        """How many cells had each outcome, failures first."""
        failed = {record.outcome for record in self.failures}
        tally = Counter(record.outcome for record in self.records)
        return sorted(tally.items(), key=lambda item: item[0] not in failed)

    @property
    def failures(self) -> list[CellRecord]:
        return [record for record in self.records if record.failed]

    def having(self, outcome: Outcome) -> list[CellRecord]:
        return [record for record in self.records if record.outcome is outcome]

    @property
    def watched(self) -> list[str]:
        """What would have failed a cell, were it not watched only."""
        return [
            f"{record.cell}: {text}" for record in self.records for text in list_watched(record)
        ]

    @property
    def limits(self) -> str:
        """How many absolute limits there were, and what became of them; empty without any."""
        tally = Counter(check.verdict for record in self.records for check in record.limits)
        return ", ".join(f"{n} {verdict}" for verdict, n in tally.items())

    @property
    def compared(self) -> bool:
        return any(record.comparisons for record in self.records)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.run, self.records)

    @property
    def cell_warnings(self) -> list[tuple[str, str, list[str]]]:
        """Warnings of cells: code, one text as an example, and the cells that have it."""
        found: dict[str, tuple[str, list[str]]] = {}
        for record in self.records:
            for notice in record.measurement.warnings if record.measurement else []:
                _, cells = found.setdefault(notice.code, (notice.text, []))
                if record.cell not in cells:
                    cells.append(record.cell)
        return [(code, text, cells) for code, (text, cells) in found.items()]

    @property
    def rerun_command(self) -> str:
        """The command that measures just the failed cells again; empty if there are none."""
        ids = [record.nodeid for record in self.failures if record.nodeid]
        if not ids:
            return ""
        command = ["pytest", *ids]
        if self.run.serve:
            command += ["--llm-serve", self.run.serve]
        elif self.run.url:
            # of several servers alike, which measured a part each, one measures again
            command += ["--llm-url", re.split(r",\s*(?=https?://)", self.run.url)[0]]
        if self.run.against:
            command += ["--llm-against", self.run.against]
        if self.run.profile:
            command += ["--hardware", self.run.profile]
        return shlex.join([*command, *self.run.options])


def _label(key: str) -> str:
    return _LABELS.get(key) or key.replace("_", " ").capitalize()


def _tokens(n: int | None) -> str | None:
    return None if n is None else f"{n:,} tokens"


def _plain(value: str | int | bool) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _span(write: Callable[[int], str], values: list[int]) -> str:
    first, last = write(values[0]), write(values[-1])
    return first if first == last else f"{first}–{last}"
