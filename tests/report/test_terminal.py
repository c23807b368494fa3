"""The terminal summary: complete in plain text, within the width, colour only on top."""

from __future__ import annotations

import re

import pytest

from pytest_llmperf.model.result import Notice, Outcome, RunResult
from pytest_llmperf.report.terminal import plain, render
from tests.support.results import SECRET, change, published_run, report_rows, troubled_run


def matrix(text: str) -> dict[tuple[str, int], str]:
    """Read the decode matrix back from the text, folded or not."""
    found, levels = {}, []
    block = text.split("Sustained decode")[1].split("\n\n")[0]
    for line in block.splitlines()[1:]:
        words = line.split()
        if not line.startswith(" ") and words:
            found.update({(words[0], level): v for level, v in zip(levels, words[1:], strict=True)})
        elif words and all(word.isdigit() for word in words):
            levels = [int(word) for word in words]
    return found


@pytest.mark.parametrize("name", ["rtxpro6k_x4", "h200nvl_x2"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_matrix_shows_each_cell_of_the_report(name: str, width: int) -> None:
    shown = matrix(plain(render(published_run(name), width)))
    rows = [row for row in report_rows(name) if row["phase"] == "decode"]
    assert len(shown) == len(rows)
    for row in rows:
        text = shown[row["context"], int(row["concurrency"])]
        if row["status"] == "over_capacity":
            assert text == "overcap"
        else:
            assert float(text.replace(",", "")) == float(row["total_tok_s"])


@pytest.mark.parametrize("width", [60, 80])
def test_matrix_and_tables_keep_within_the_width(width: int) -> None:
    text = plain(render(troubled_run(), width))
    tables = [
        line for line in text.splitlines() if re.match(r"(\d+K|tok/s|change|TTFT| {8,})", line)
    ]
    assert len(tables) > 15
    assert max(map(len, tables)) <= max(width, 70)


def test_prefill_shows_rate_and_ttft_of_each_context() -> None:
    text = plain(render(published_run()))
    block = text.split("Prefill:")[1].split("\n\n")[0].splitlines()[1:]
    rows = {line.split()[0]: line.split()[1:] for line in block[1:]}
    published = [row for row in report_rows() if row["phase"] == "prefill"]
    assert block[0].split() == [row["context"] for row in published]
    for label, column in (("tok/s", "total_tok_s"), ("TTFT", "ttft_ms")):
        numbers = [float(text.replace(",", "")) for text in rows[label]]
        assert numbers == [float(row[column]) for row in published]


def test_without_colour_a_regression_stands_out_with_all_its_numbers() -> None:
    text = plain(render(troubled_run()))
    assert "!-13.8%" in text
    assert "! regressed" in text
    assert "REGRESSED decode[8K-c16]" in text
    assert re.search(r"total tok/s +892\.0 +769\.0 +-13\.8 % +±7\.0 % weak  worse", text)
    assert "  total tok/s fell: slower steps (the engine got slower)" in text
    assert "a table" not in text
    assert "tok/s of the 3 attempts: 769.0, 771.3, 766.2" in text


def test_a_failure_shows_what_failed_and_no_more() -> None:
    """The test's own message, and the reports, have the metrics that held."""
    block = plain(render(troubled_run())).split("REGRESSED decode[8K-c16]")[1].split("INVALID")[0]
    assert "ITL, ms" in block
    assert "TTFT" not in block


def test_long_texts_are_folded_between_words_and_the_command_is_not() -> None:
    run = change(published_run(), "decode[8K-c1]", outcome=Outcome.REGRESSED, notes=["word " * 40])
    run = run.model_copy(update={"warnings": [Notice(code="drift", text="sentence " * 30)]})
    lines = plain(render(run, 60)).splitlines()
    prose = [line for line in lines if "word" in line or "sentence" in line]
    assert len(prose) > 8
    assert max(map(len, prose)) <= 60
    assert all(line.startswith("  ") for line in prose if not line.startswith("note:"))
    assert len(lines[-1]) > 60


def test_every_other_outcome_is_listed() -> None:
    text = plain(render(troubled_run()))
    assert "INVALID decode[32K-c8]\n  2 of 8 requests failed" in text
    assert "CAPACITY REGRESSION decode[64K-c32]\n  needs 2,228,224 KV tokens" in text
    assert "IMPROVED decode[16K-c2]: total tok/s 213.2 -> 250.8 (+17.6 %)" in text
    assert "UNGATED decode[507K-c2]" in text
    assert "NEW decode[128K-c8]" in text
    assert "UPDATED decode[256K-c1]" in text
    assert "Stale: decode[4K-c1]" in text
    assert "preemptions: 3 requests were preempted (decode[8K-c16])" in text
    assert "2 REGRESSED, 1 INVALID, 1 CAPACITY REGRESSION, 35 PASS, 21 OVERCAP" in text


def test_the_end_is_the_command_that_measures_the_failed_cells_again() -> None:
    lines = plain(render(troubled_run())).splitlines()
    assert lines[-2] == "Measure the failed cells again:"
    assert lines[-1].count("::test_") == 4
    assert "'perf_tests/test_decode.py::test_decode[8K-c16]'" in lines[-1]
    assert lines[-1].endswith("--llm-url http://gpu1:8000 --hardware rtxpro6k_x4")
    given = troubled_run().model_copy(update={"options": ["--llm-contexts", "8K, 12K"]})
    assert plain(render(given)).endswith("--hardware rtxpro6k_x4 --llm-contexts '8K, 12K'")
    several = troubled_run().model_copy(update={"url": "http://a:1,http://b:2"})
    assert "--llm-url http://a:1 --hardware" in plain(render(several)).splitlines()[-1]
    assert "again" not in plain(render(published_run()))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (published_run(), "No regression in 42 measured cells"),
        (published_run(compared=False), "nothing compared. Why: no hardware profile was named"),
        (published_run(simulated=True), "SIMULATED: numbers of the built-in simulator"),
        (published_run(finished=False, interrupted="Ctrl-C"), "Stopped early: Ctrl-C"),
        (published_run(cells=[]), "Nothing was measured"),
    ],
    ids=["green", "no profile", "simulated", "interrupted", "empty"],
)
def test_what_kind_of_run_it_was_is_said(run: RunResult, words: str) -> None:
    assert words in plain(render(run))


@pytest.mark.parametrize("compared", [False, True], ids=["new profile", "accepted"])
def test_an_update_is_no_run_without_a_verdict(compared: bool) -> None:
    """Slower values that were accepted are judged: they are what was asked for."""
    run = published_run(compared=compared, profile="lab")
    for record in run.cells:
        worse = [c.model_copy(update={"verdict": "worse"}) for c in record.comparisons]
        if record.outcome is not Outcome.OVERCAP:
            run = change(run, record.cell, outcome=Outcome.UPDATED, comparisons=worse)
    assert "42 of 64 cells updated, none failed. Baseline lab." in plain(render(run))


def test_an_ungated_cell_is_named_with_what_helps() -> None:
    """Its speed was measured, and nobody could judge it."""
    run = published_run()
    assert "ungated:" not in plain(render(run))
    text = plain(render(change(run, "decode[8K-c16]", outcome=Outcome.UNGATED)))
    assert "No regression in 41 measured cells. Against the baseline rtxpro6k_x4. 1 more" in text
    assert "UNGATED decode[8K-c16]" in text
    assert "a longer --llm-duration helps" in text


def test_a_cell_with_two_warnings_of_a_kind_is_named_once() -> None:
    run = published_run()
    measured = next(r for r in run.cells if r.cell == "decode[8K-c16]").measurement
    assert measured is not None
    twice = [Notice(code="measured-again", text="an attempt was thrown away")] * 2
    measured = measured.model_copy(update={"warnings": twice})
    text = plain(render(change(run, "decode[8K-c16]", measurement=measured)))
    assert "thrown away (decode[8K-c16])" in text


def test_a_run_in_which_nothing_is_gated_is_not_called_good() -> None:
    run = published_run()
    for outcome, words in (
        (Outcome.UNGATED, "Nothing could be judged. Every cell is new or too noisy, so "),
        (Outcome.NEW, "Nothing to compare with. Every cell is new, so this run is not green."),
    ):
        cells = [
            r.model_copy(update={"outcome": outcome}) if r.outcome is Outcome.PASS else r
            for r in run.cells
        ]
        text = plain(render(run.model_copy(update={"cells": cells})))
        assert words in text


def test_a_worse_matrix_is_a_failure_no_note() -> None:
    """Beside cells that failed, the last line tells of both."""
    matrix = "The cells together are worse:\nall cells: ITL +4.0 % WORSE"
    text = plain(render(troubled_run().model_copy(update={"matrix": matrix})))
    assert f"\n{matrix}\n" in text
    assert "; so did the matrix as a whole" in text


def test_a_verdict_of_invalid_takes_the_numbers_away() -> None:
    """Also where the measurement itself was valid but lacked what is gated."""
    run = change(published_run(), "decode[8K-c1]", outcome=Outcome.INVALID, notes=["ITL: missing"])
    text = plain(render(run))
    assert matrix(text)["8K", 1] == "INVALID"
    assert "INVALID decode[8K-c1]\n  ITL: missing" in text


def test_a_new_cell_that_fails_its_test_counts_as_a_failure() -> None:
    """Under CI a cell without a baseline fails unless it is allowed to be new."""
    run = change(published_run(), "decode[8K-c1]", outcome=Outcome.NEW, failed=True)
    text = plain(render(run))
    assert "1 of 64 cells failed: 1 new" in text
    assert "test_decode[8K-c1]" in text.splitlines()[-1]


def test_no_secret_is_shown() -> None:
    run = published_run(interrupted=f"HTTP 401: invalid key {SECRET}")
    assert SECRET not in plain(render(run))


def test_styles_are_names_that_pytest_knows() -> None:
    known = {"red", "green", "yellow", "cyan", "bold"}
    styles = {name for line in render(troubled_run()) for part in line for name in part.markup}
    assert {"red", "green"} <= styles <= known
