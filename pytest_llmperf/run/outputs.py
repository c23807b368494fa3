"""The report files of a run, written or not: a full disk costs a report, never a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmperf.model.result import RunResult


class Outputs:
    """What was written so far."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        """
        Args:
            say: is told of a file that cannot be written, the first time.
        """
        self.written: list[Path] = []
        self.unwritable: dict[Path, str] = {}
        """Reports that could not be written so far, and why."""
        self._say = say

    def write(self, name: str, path: Path, results: Sequence[RunResult]) -> None:
        """Write a report of the last of ``results``; a page (``html``) shows all side by side."""
        # loaded with every run of pytest-xdist's, and needed at its end only
        from pytest_llmperf.report import html
        from pytest_llmperf.report.files import write_atomically
        from pytest_llmperf.report.publish import publish

        try:
            if name == "html" and len(results) > 1:
                names = [f"run {n}" for n in range(1, len(results) + 1)]
                write_atomically(path, html.render(results, names))
            else:
                publish(results[-1], name, path)
        except OSError as error:
            if path not in self.unwritable and not results[-1].finished:
                self._say(f"llmperf: cannot write {path}: {error.strerror}; measuring goes on")
            self.unwritable[path] = error.strerror or type(error).__name__
        else:
            self.unwritable.pop(path, None)
            if path not in self.written:
                self.written.append(path)
