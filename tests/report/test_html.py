"""The HTML report as a document: complete, escaped, self-contained, small, well-formed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from pytest_llmperf.model.result import Notice, RunResult, ServerInfo
from pytest_llmperf.report import json as results
from pytest_llmperf.report.html import render
from tests.support.results import SECRET, published_run, report_rows, troubled_run

VOID = {"meta", "link", "input", "br"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}<!--"


class Document(HTMLParser):
    """Elements with attributes and text, checked for nesting while reading."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        """What stands in each element with an id: texts, and values of ``data`` elements."""
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "data":
            self._note(f"={attributes['value']}")
        if tag not in VOID:
            self._open.append((tag, attributes.get("id")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1][0] == tag, f"</{tag}> closes <{self._open[-1][0]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._note(data)

    def _note(self, text: str) -> None:
        for _, name in self._open:
            if name:
                self.inside.setdefault(name, []).append(text)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def numbers(value: Any, skip: tuple[str, ...] = ()) -> Iterator[float]:
    """Every number within a JSON value, but for those under the named keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in skip:
                yield from numbers(item, skip)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item, skip)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@pytest.fixture(scope="module")
def page() -> str:
    return render([troubled_run()])


def test_each_cell_shows_every_number_of_the_json(page: str) -> None:
    document = Document(page)
    data = json.loads(results.dumps(troubled_run()))
    checked = 0
    for record in data["cells"]:
        place = f"r1-{record['cell']}"
        full = ",".join(t[1:] for t in document.inside[place] if t.startswith("="))
        shown = {float(number) for number in full.split(",") if number}
        drawn = ("series", "ttfts_ms", "itls_ms", "phase", "context", "concurrency")
        wanted = set(numbers(record, drawn))
        assert wanted <= shown, (record["cell"], wanted - shown)
        checked += len(wanted)
    assert checked > 1000


def test_the_page_carries_the_results_whole_so_that_it_can_be_rebuilt(page: str) -> None:
    carried = "".join(Document(page).inside["r1-json"])
    assert json.loads(carried) == json.loads(results.dumps(troubled_run()))


@pytest.mark.parametrize("name", ["rtxpro6k_x4", "h200nvl_x2"])
def test_the_matrix_shows_each_cell_of_the_report(name: str) -> None:
    matrix = Document(render([published_run(name)])).inside["r1-matrix"]
    text = " ".join("".join(matrix).split())
    for row in report_rows(name):
        if row["phase"] == "decode" and row["status"] == "valid":
            assert f"{float(row['total_tok_s']):,.1f}{float(row['ttft_ms']):,.0f} ms TTFT" in text
    over = sum(row["status"] == "over_capacity" for row in report_rows(name))
    assert text.count("Over capacity") == over


def test_foreign_text_neither_runs_nor_loads_nor_breaks_out() -> None:
    run = troubled_run()
    cells = [
        record.model_copy(update={"message": HOSTILE, "notes": [HOSTILE], "nodeid": HOSTILE})
        for record in run.cells
    ]
    hostile = run.model_copy(
        update={
            "cells": cells,
            "url": HOSTILE,
            "profile": HOSTILE,
            "hardware": {"gpu": HOSTILE, "gpu_count": 2, "vram_gb": 4},
            "run_info": {"launch_command": HOSTILE, HOSTILE: HOSTILE},
            "warnings": [Notice(code=HOSTILE, text=HOSTILE)],
            "stale": [HOSTILE],
            "server": ServerInfo(engine=HOSTILE, version=HOSTILE, model=HOSTILE, notes=[HOSTILE]),
        }
    )
    text = render([hostile], names=[HOSTILE])
    document = Document(text)
    scripts = document.all("script")
    assert scripts == [{"type": "application/json", "id": "r1-json"}, {}]
    assert not document.all("img")
    assert not [a for _, attributes in document.elements for a in attributes if a.startswith("on")]
    assert "49" not in "".join(document.inside["r1-title"])
    assert json.loads("".join(document.inside["r1-json"]))["profile"] == HOSTILE


@pytest.mark.parametrize(
    "runs",
    [[troubled_run()], [published_run(), published_run("h200nvl_x2")]],
    ids=["one", "two"],
)
def test_nothing_is_loaded_from_anywhere(runs: list[RunResult]) -> None:
    document = Document(render(runs))
    for tag, attributes in document.elements:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "poster", "srcset"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:,")), (tag, target)
        assert "style" not in attributes
    policy = next(m["content"] for m in document.all("meta") if m.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


@pytest.mark.parametrize("runs", [1, 2])
def test_ids_are_unique_and_links_lead_somewhere(runs: int) -> None:
    document = Document(render([troubled_run()] * runs))
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for a in document.all("a")}
    assert targets <= set(ids)
    for _, attributes in document.elements:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)


def test_tables_and_charts_have_names_for_readers_of_the_screen(page: str) -> None:
    document = Document(page)
    tags = [tag for tag, _ in document.elements]
    assert tags.count("table") == tags.count("caption") > 50
    assert all(th.get("scope") in ("row", "col", "rowgroup") for th in document.all("th"))
    charts = document.all("svg")
    assert len(charts) > 50
    assert all(svg.get("role") == "img" and svg.get("aria-labelledby") for svg in charts)
    assert tags.count("desc") == len(charts)
    assert tags.count("h1") == 1
    assert document.all("html") == [{"lang": "en"}]


def test_regressions_come_first_with_the_command_that_measures_them_again(page: str) -> None:
    heads = re.findall(r"<h2[^>]*>([^<]+)", page)
    assert heads[:1] == ["Regressions and failures"]
    assert heads[1:] == [
        "Notes", "Hardware", "Engine", "Run", "Launch command", "Prefill", "Sustained decode",
        "All measurements", "Cells in detail",
    ]  # fmt: skip
    assert "<code>pytest &#39;perf_tests/" in page.split("Measure the failed cells again")[1]
    assert "Measure the failed cells again" not in render([published_run()])


def test_a_row_of_all_measurements_is_headed_by_its_cell(page: str) -> None:
    """The first column stays while the others scroll: it must tell the rows apart."""
    table = page.split('id="r1-all"')[1].split("</table>")[0]
    heads = re.findall(r'<th scope="row"><a [^>]*>([^<]+)</a></th>', table)
    assert heads[:2] == ["prefill[8K]", "decode[8K-c1]"]
    assert len(heads) == len(set(heads)) == 64


def test_a_failed_cell_that_was_measured_again_shows_every_attempt(page: str) -> None:
    failures = page.split("Regressions and failures</h2>")[1].split("<h2")[0]
    assert ">769.0, 771.3, 766.2</td>" in failures
    assert failures.count(">Attempts<") == 1  # the other failed cells were measured once


def test_a_full_matrix_is_under_three_megabytes(page: str) -> None:
    """With three attempts, a long window and 128 requests in every cell that was measured."""
    run = troubled_run()
    cells = []
    for record in run.cells:
        m = record.measurement
        if m is not None and m.series is not None:
            values = [(m.ttft_ms or 0.0) + math.sqrt(i) for i in range(128)]
            m = m.model_copy(update={"ttfts_ms": values, "itls_ms": values})
            record = record.model_copy(update={"measurement": m, "attempts": [m, m, m]})
        cells.append(record)
    assert len(page.encode()) < 1_500_000
    assert len(render([run.model_copy(update={"cells": cells})]).encode()) < 3_000_000


def test_no_secret_is_shown(page: str) -> None:
    assert SECRET not in page
    assert "--api-key &lt;redacted&gt;" in page


def test_a_simulated_run_is_stamped_and_a_real_one_is_not(page: str) -> None:
    assert 'class="stamp"' in render([published_run(simulated=True)])
    assert 'class="stamp"' not in page


@pytest.mark.parametrize(
    "run",
    [
        published_run(cells=[]),
        published_run(server=None, hardware={}, run_info={}, url=""),
        published_run(finished=False, interrupted="Ctrl-C"),
        published_run(compared=False),
    ],
    ids=["empty", "no server", "interrupted", "no profile"],
)
def test_a_run_that_lacks_much_still_makes_a_page(run: RunResult) -> None:
    document = Document(render([run]))
    assert len(document.all("h1")) == 1


def test_several_runs_stand_side_by_side_with_changes_against_the_first() -> None:
    text = render(
        [published_run(), published_run("h200nvl_x2")], names=["before.json", "after.json"]
    )
    table = text.split('class="matrix compare"')[1].split("</table>")[0]
    first = " ".join(re.sub(r"<[^>]+>", " ", table.split("<tbody>")[1]).split())
    assert first.startswith("8K before.json 153.7 245.9 364.0")
    assert "after.json 43.6 -71.6 % 56.6 -77.0 %" in first
    assert "251K" in first
    assert "507K" in first


def test_a_worse_matrix_is_a_failure_and_an_arrow_an_arrow() -> None:
    run = published_run()
    cell = run.cells[0].model_copy(update={"notes": ["drift: 3 -> 2 -> 1"]})
    matrix = "The cells together are worse:\nall cells: ITL +4.0 % WORSE"
    text = render([run.model_copy(update={"cells": [cell], "matrix": matrix})])
    failures = text.split("Regressions and failures</h2>")[1].split("<h2")[0]
    assert "<li>all cells: ITL +4.0 % WORSE</li>" in failures
    assert "drift: 3 → 2 → 1" in text


def test_two_servers_head_their_report() -> None:
    text = render([published_run(url="http://a", against="http://b")])
    assert "<title>A/B: http://a against http://b</title>" in text
    assert "change against http://b" in text
    assert "<i></i>http://b</span>" in text


def test_details_are_named_for_people() -> None:
    run = published_run()
    measured = run.cells[0].measurement
    assert measured is not None
    measured = measured.model_copy(
        update={"prefill_samples": [1000.5, 1001.5], "std_errors": {"ttft_ms": 0.5}}
    )
    cell = run.cells[0].model_copy(update={"measurement": measured})
    text = render([run.model_copy(update={"cells": [cell]})])
    assert ">1,000.5; 1,001.5</" in text
    for name in ("Standard error: TTFT, ms", "ITL rests on few arrivals", "Method version"):
        assert f"<td>{name}</td>" in text


def test_words_of_verdicts_are_explained_where_something_was_compared() -> None:
    assert "Weak: of fewer than three baseline runs" in render([published_run()])
    assert "Weak: " not in render([published_run(compared=False)])


def test_no_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="no run"):
        render([])
