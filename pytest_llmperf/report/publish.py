"""One call for any report file: the format's module renders, ``files`` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_llmperf.model.result import RunResult
from pytest_llmperf.report import html, json, markdown
from pytest_llmperf.report.files import write_atomically

_RENDER: dict[str, Callable[[RunResult], str]] = {
    "html": lambda run: html.render([run]),
    "json": json.dumps,
    "md": markdown.render,
}


def publish(run: RunResult, name: str, path: Path) -> None:
    """Write a run as ``html``, ``json`` or ``md``.

    Raises:
        OSError: when the file cannot be written; an older one is then left as it was.
    """
    write_atomically(path, _RENDER[name](run))
