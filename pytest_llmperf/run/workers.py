"""Under pytest-xdist: which server a worker measures, and its results on their way back. Light."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.run.outputs import Outputs

if TYPE_CHECKING:
    from pytest_llmperf.model.result import RunResult

OUTPUT = "llmperf"
"""Key of a worker's output that holds its results, as JSON."""


def worker_id(config: pytest.Config) -> str | None:
    """``gw0`` on a worker of pytest-xdist, else None."""
    worker = getattr(config, "workerinput", None)
    return worker["workerid"] if worker else None


def split_urls(text: str) -> list[str]:
    """Several servers in one ``--llm-url``; a simulator's parameters may hold commas."""
    return [url.strip() for url in re.split(r",\s*(?=https?://|sim\b)", text)]


def own_url(config: pytest.Config, text: str | None, settings: Settings) -> str | None:
    """The server of this process: the only one, or on a worker its own.

    Raises:
        ConfigError: workers would share a server, and measure each other.
    """
    urls = split_urls(text) if text else []
    worker = worker_id(config)
    if worker is None:
        if len(urls) > 1:
            raise ConfigError(
                f"--llm-url names {len(urls)} servers: they are measured by as many workers of "
                f"pytest-xdist, add -n {len(urls)}"
            )
        return text
    count = config.workerinput["workercount"]  # type: ignore[attr-defined]
    simulated = len(urls) == 1 and urls[0].startswith("sim")
    if settings.serve or simulated or len(urls) < count:
        raise ConfigError(
            f"{count} workers of pytest-xdist would measure each other's load: cells run one "
            "after the other. Leave -n out (-n 0), or name one server for each worker: "
            "--llm-url http://a:8000,http://b:8000"
        )
    if settings.update or settings.runs > 1 or settings.against or settings.serve_against:
        raise ConfigError(
            "a worker of pytest-xdist updates no baseline, and measures neither several runs nor "
            "two servers; leave -n out (-n 0)"
        )
    number = int(worker.removeprefix("gw"))
    if number >= len(urls):
        raise ConfigError("a worker of pytest-xdist died; the one in its place has no server")
    return urls[number]


def make_scheduler(config: pytest.Config, log: Any, urls: str | None) -> Any:
    """A scheduler of pytest-xdist that gives each worker whole contexts, so that a prompt is
    prefilled on one server only; None where there is one server, or the user chose ``--dist``."""
    if not urls or len(split_urls(urls)) == 1 or config.option.dist != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByContext(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            cell = re.search(r"\[(\d+[KkMm]?)(?:-c\d+)?\]$", nodeid)
            return cell[1] if cell else str(super()._split_scope(nodeid))

    return ByContext(config, log)


class Gathered:
    """What the workers measured, as one run; made in the process that started them."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self.final: RunResult | None = None
        self.empty = ""
        self.update_text = ""
        self.outputs = Outputs()
        self._texts: list[str] = []

    def add(self, output: Mapping[str, object]) -> None:
        """Take a worker's output; one that measured nothing has none of ours."""
        if text := output.get(OUTPUT):
            self._texts.append(str(text))

    def finish(self, status: int, reports: Mapping[str, Path]) -> int:
        """Write the reports; return pytest's exit status."""
        if not self._texts:
            return status
        from pytest_llmperf.model.result import RunResult
        from pytest_llmperf.verdict import why_empty

        runs = [RunResult.model_validate_json(text) for text in self._texts]
        cells = [record for run in runs for record in run.cells]
        self.records.extend(cells)
        findings = [finding for run in runs for finding in run.findings]
        self.final = runs[0].model_copy(
            update={
                "url": ",".join(sorted(run.url for run in runs)),
                "finished": all(run.finished for run in runs),
                "interrupted": "; ".join(filter(None, (run.interrupted for run in runs))),
                "cells": cells,
                "failed_tests": [nodeid for run in runs for nodeid in run.failed_tests],
                "warnings": [notice for run in runs for notice in run.warnings],
                "findings": findings,
            }
        )
        for name, path in reports.items():
            self.outputs.write(name, path, [self.final])
        self.empty = why_empty(cells)
        return status or int(bool(self.empty or self.outputs.unwritable or findings))
