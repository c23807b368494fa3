"""The Markdown report, read back the way GitHub reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from pytest_llmperf.model.result import RunResult, ServerInfo
from pytest_llmperf.report.markdown import escape, render
from tests.support.results import SECRET, published_run, report_rows, troubled_run

HOSTILE = "x|y\n# pwn <script>alert(1)</script> [a](http://evil) `@team` **b** ~~c~~ &lt;"


class Tables(HTMLParser):
    """Collects headings, and the texts of every table's cells under them."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: set[str] = set()
        self._into: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag in ("h1", "h2"):
            self.headings.append("")
            self._into = self.headings
        elif tag == "tr":
            self.tables.setdefault(self.headings[-1], []).append([])
        elif tag in ("td", "th"):
            self._into = self.tables[self.headings[-1]][-1]
            self._into.append("")
        elif tag == "br" and self._into:
            self._into[-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "h1", "h2"):
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into:
            self._into[-1] += data


def read(text: str) -> Tables:
    tables = Tables()
    tables.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    return tables


def numeric(text: str) -> float | None:
    match = re.match(r"[-+±]?[\d,]+(\.\d+)?", text)
    return float(match[0].lstrip("±").replace(",", "")) if match else None


@pytest.mark.parametrize("name", ["rtxpro6k_x4", "h200nvl_x2"])
def test_all_measurements_hold_every_number_of_the_report(name: str) -> None:
    head, *rows = read(render(published_run(name))).tables["All measurements"]
    published = report_rows(name)
    assert head[:9] == [
        "Phase", "Context", "Requests at once", "Status", "Verdict", "Total tok/s",
        "Baseline tok/s", "Change", "Tolerance",
    ]  # fmt: skip
    names = (
        "Total tok/s", "Per request tok/s", "TTFT", "Time between tokens",
        "Average active requests", "Completed requests", "Output tokens", "Measured for",
    )  # fmt: skip
    assert len(rows) == len(published)
    key = {"Prefill": "prefill", "Sustained decode": "decode"}
    shown = {(key[row[0]], row[1], row[2]): row for row in rows}
    columns = (
        "total_tok_s", "per_request_tok_s", "ttft_ms", "itl_ms", "avg_active", "completed",
        "output_tokens", "measured_s",
    )  # fmt: skip
    for row in published:
        found = shown[row["phase"], row["context"], row["concurrency"]]
        values = [numeric(found[head.index(label)]) for label in names]
        assert values == [float(row[column]) if row[column] else None for column in columns]
        assert found[3] == ("Valid" if row["status"] == "valid" else "Over capacity")


def test_the_sections_are_those_of_the_published_reports_and_ours() -> None:
    assert read(render(troubled_run())).headings[1:] == [
        "Regressions and failures", "Notes", "Hardware", "Engine", "Run", "Launch command",
        "Prefill", "Sustained decode", "Warnings", "All measurements", "Comparisons", "Attempts",
    ]  # fmt: skip


def test_the_matrix_has_ttft_and_change_under_each_value() -> None:
    head, *rows = read(render(troubled_run())).tables["Sustained decode"]
    cells = {
        (row[0], int(level)): text
        for row in rows
        for level, text in zip(head[1:], row[1:], strict=True)
    }
    assert cells["8K", 16].split("\n") == ["769.0", "298 ms TTFT", "-13.8 %", "REGRESSED"]
    assert cells["8K", 1].split("\n") == ["153.7", "82 ms TTFT", "±0 %"], "within its error"
    assert cells["8K", 128] == "Over capacity"
    assert cells["32K", 8] == "Invalid"


def test_a_failure_has_metric_baseline_measured_change_tolerance_and_attempts() -> None:
    text = render(troubled_run())
    rows = read(text).tables["Regressions and failures"]
    attempts = "769.0, 771.3, 766.2"
    assert rows[1] == [
        *("decode[8K-c16]", "REGRESSED"),
        *("total tok/s", "892.0", "769.0", "-13.8 %", "±7.0 % weak", attempts),
    ]  # fmt: skip
    assert "```sh\npytest 'perf_tests/" in text


def hostile_run() -> RunResult:
    run = troubled_run()
    cells = [record.model_copy(update={"message": HOSTILE}) for record in run.cells]
    server = ServerInfo(engine=HOSTILE, version=HOSTILE, model=HOSTILE, notes=[HOSTILE])
    return run.model_copy(
        update={
            "cells": cells,
            "server": server,
            "run_info": {"launch_command": f"```\n{HOSTILE}", "note": HOSTILE},
        }
    )


def test_what_a_server_says_is_never_markup() -> None:
    text = render(hostile_run())
    tables = read(text)
    assert not {"script", "a", "s"} & tables.tags
    assert "pwn" not in [heading.strip() for heading in tables.headings]
    assert len(tables.headings) == len(read(render(troubled_run())).headings)
    assert "@team" not in text.split("## Launch command")[0]


def test_escaped_text_reads_as_it_was() -> None:
    shown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(escape(HOSTILE))
    collected: list[str] = []
    parser = HTMLParser()
    parser.handle_data = collected.append  # type: ignore[method-assign]
    parser.feed(shown)
    assert "".join(collected).strip().replace("\u200b", "") == " ".join(HOSTILE.split())


def test_a_size_limit_drops_the_least_needed_sections_first_and_says_so() -> None:
    run = troubled_run()
    whole = render(run)
    headings = read(whole).headings
    seen: list[list[str]] = []
    for limit in (len(whole.encode()) - 1, 12_000, 6_000, 2_000):
        text = render(run, limit_bytes=limit)
        assert len(text.encode()) <= limit
        assert "to fit the size limit" in text
        assert "4 of 64 cells failed" in text
        seen.append(read(text).headings)
    assert "Attempts" not in seen[0]
    assert "All measurements" in seen[0]
    assert "Sustained decode" in seen[1]
    assert "Regressions and failures" in seen[2]
    assert [len(s) for s in seen] == sorted((len(s) for s in seen), reverse=True)
    assert set(seen[0]) < set(headings)
    assert len(render(run, limit_bytes=100).encode()) <= 100


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert render(published_run(), limit_bytes=1 << 20) == render(published_run())


def test_no_secret_is_shown_and_the_launch_command_is() -> None:
    text = render(published_run())
    assert SECRET not in text
    assert "--api-key <redacted> --tensor-parallel-size 4" in text


def test_a_simulated_run_says_so_at_the_top() -> None:
    assert "Simulated:" in render(published_run(simulated=True)).split("##")[0]
    assert "Simulated" not in render(published_run())
