"""Reading and writing baseline files: nothing is lost, nothing wrong is accepted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_llmperf.baseline import yamltext
from pytest_llmperf.baseline.file import dumps, load, loads
from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.errors import ConfigError
from tests.baseline.samples import SMALL, awkward, baselines

SHIPPED = sorted(shipped("baselines").glob("*.yaml"))


@given(baselines())
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back_equal(baseline: Baseline) -> None:
    text = dumps(baseline)
    again = loads(text, "x")
    assert again == baseline
    assert dumps(again) == text


@given(baselines())
@settings(max_examples=25, deadline=None)
def test_any_yaml_reader_sees_the_same_figures(baseline: Baseline) -> None:
    """Nothing rests on our loader: plain PyYAML finds every value, and no text became a number."""
    data = yaml.safe_load(dumps(baseline))
    for cell_id, cell in baseline.cells.items():
        assert {k: v for k, v in data["cells"][cell_id].items() if isinstance(v, list)} == {
            "runs": cell.runs,
            **dict(cell.lists()),
        }
    for name, run in baseline.runs.items():
        assert data["runs"][name].get("launch_command") == run.launch_command


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_profiles_are_byte_identical_after_a_round_trip(path: Path) -> None:
    assert dumps(load(path)).encode() == path.read_bytes()


def test_layout() -> None:
    """The form that people review: fixed key order, one line a metric, labels for contexts."""
    assert dumps(loads(SMALL, "x")) == SMALL


@pytest.mark.parametrize(
    "text", ["0.10", "12:30", "1e5", "2026-11-30", "48e1234", "no", "y", "1_0"]
)
def test_text_that_reads_as_something_else_is_quoted(text: str) -> None:
    assert yamltext.block({"k": text}) == f'k: "{text}"\n'


@given(awkward)
def test_awkward_text_survives_in_every_place(text: str) -> None:
    assert yaml.safe_load(yamltext.block({"k": text})) == {"k": text}
    line = yamltext.flow({"k": [text]})
    assert yaml.safe_load(line) == {"k": [text]}
    assert len(line.splitlines()) == 1


def test_figures_keep_six_digits() -> None:
    text = SMALL.replace("153.7", "153.70001234").replace("18500", "18500123")
    assert "total_tok_s: [153.7, 150.25]" in dumps(loads(text, "x"))
    assert "prefill_tok_s: [18500100]" in dumps(loads(text, "x"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("org/model", "", r"f\.yaml:3: match\.model: has no value"),
        ("engine: vllm}", "engine: vllm", r"f\.yaml:4: not YAML"),
        ("gpu_count: 2}\nmatch", "gpus: 2}\nmatch", r"f\.yaml:2: hardware\.gpus: unknown field"),
        ("match:", "mach:", r"f\.yaml:3: mach: unknown field"),
        ("hardware:", "hardwre:", r"f\.yaml:2: hardwre: unknown field"),
        ("engine_version:", "version:", r"f\.yaml:8: runs\.first\.version: unknown field"),
        ("153.7", ".nan", r"f\.yaml:15: cells\.decode\[8K-c1\]\.total_tok_s\[0\]: must be"),
        ("150.25", ".inf", r"total_tok_s\[1\]: must be a finite number, not inf"),
        ("153.7", '"153.7"', r"total_tok_s\[0\]: must be a finite number, not '153.7'"),
        ("153.7", "yes", r"total_tok_s\[0\]: must be a finite number, not True"),
        ("153.7", "1e3", r"total_tok_s\[0\]: must be a finite number, not '1e3'"),
        ("153.7", "0", r"total_tok_s\[0\]: Input should be greater than 0, not '0'"),
        ("153.7", "-1.5", r"total_tok_s\[0\]: Input should be greater than 0"),
        ("153.7, ", "", r"f\.yaml:13: cells\.decode\[8K-c1\]: total_tok_s has 1 values for 2 runs"),
        ("[first, second]", "[first, first]", "a run is named twice"),
        ("[first, second]", "[first, third]", r"run 'third' is not listed under runs"),
        ("decode[8K-c1]:", "decode[8192-c1]:", r"f\.yaml:13: .*should be written"),
        ("decode[8K-c1]:", "decode[8K]:", r"f\.yaml:13: .*'decode\[8K\]' is not a cell"),
        ("    itl_ms", "    prefill_tok_s", "a decode cell has no prefill_tok_s"),
        ("    itl_ms", "    total_tok_s", r"f\.yaml:15: .*again in line 16"),
        ("  second:", "  first:", r"f\.yaml:6: runs\.first: .*again in line 9"),
        ("{needs: 135168, budget: null}", "{needs: 0, budget: null}", "over_capacity.needs"),
        ("over_capacity: {needs: 135168, budget: null}", "itl_ms: []", "has 0 values for 1 runs"),
        (", over_capacity: {needs: 135168, budget: null}", "", "either metrics or over_capacity"),
        ("[8K, 1000]", "[8K, 8X]", r"f\.yaml:4: settings\.contexts\[1\]: '8X' is not a"),
        ("concurrency: [1, 16], ", "", r"f\.yaml:4: settings: concurrency is missing"),
        ("max_tokens: 256", "max_tokens: 256.5", r"settings\.max_tokens: .*integer"),
        ('"2026-01-02"', "2026-01-02", r"f\.yaml:7: runs\.first\.date: .*valid string"),
        ('"0.10"', "0.10", r"f\.yaml:8: runs\.first\.engine_version: .*valid string"),
        ("schema: 1", "schema: 2", "made by a newer version of pytest-llmperf .*upgrade it"),
        ("schema: 1", "schema: 0", r"f\.yaml:1: schema: there is no schema 0"),
        ("schema: 1", 'schema: "1"', "a baseline starts with 'schema: 1'"),
        ("schema: 1\n", "", "a baseline starts with 'schema: 1'"),
        ("runs:\n", "tolerance: {speed: 0.1}\nruns:\n", r"f\.yaml:5: tolerance\.speed: no metric"),
        ("runs:\n", "tolerance: {itl_ms: 0}\nruns:\n", r"tolerance\.itl_ms: .*greater than 0"),
        (
            "runs:\n",
            "tolerance: {total_tok_s: 5}\nruns:\n",  # percent?
            r"tolerance\.total_tok_s: .*less than 1",
        ),
        ("...\n", "---\nschema: 1\n", r"not YAML \(but found another document\)"),
        ("...\n", "", "cut off, its last line should be '...'"),
        ("first:", "1:", "runs"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_error(old: str, new: str, message: str) -> None:
    """File, and line or field, are named, and what to do."""
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    with pytest.raises(ConfigError, match=message) as caught:
        loads(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml")
    assert "\n" not in str(caught.value)
    assert "version control" in str(caught.value) or "upgrade" in str(caught.value)


@pytest.mark.parametrize("text", ["", "null", "[]", "x", "\0\0\0", "2: {", "!!bool x", "&a [*a]"])
def test_what_is_no_baseline_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml"):
        loads(text, "f.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


@given(st.integers(0, len(SMALL) - 2))
@example(SMALL.index("...") - 1)
@settings(max_examples=100, deadline=None)
def test_a_cut_off_file_is_never_accepted(length: int) -> None:
    """Wherever a write stopped; also between two lines, where the rest is good YAML."""
    cut = SMALL[:length]
    if cut.rstrip() == SMALL.rstrip():
        return
    with pytest.raises(ConfigError):
        loads(cut, "x")


@given(st.integers(0, len(SMALL) - 1), st.characters(exclude_categories=["Cs"]))
@settings(max_examples=100, deadline=None)
def test_a_corrupted_file_is_refused_or_valid(place: int, character: str) -> None:
    """No other error than ours, and what loads obeys the schema in a second pass."""
    text = SMALL[:place] + character + SMALL[place + 1 :]
    try:
        baseline = loads(text, "x")
    except ConfigError:
        return
    assert loads(dumps(baseline), "x") == baseline


def test_an_older_schema_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version by version, each step a function of the whole document."""

    def rename(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda data: {new if key == old else key: value for key, value in data.items()}

    steps = {-1: rename("rows", "measurements"), 0: rename("measurements", "cells")}
    monkeypatch.setattr(yamltext, "MIGRATIONS", steps)
    old = SMALL.replace("schema: 1", "schema: -1").replace("cells:", "rows:")
    assert loads(old, "x") == loads(SMALL, "x")


def test_a_file_in_another_layout_needs_no_end_mark() -> None:
    """People and other tools write YAML too; only our own text without its end is cut off."""
    data = yaml.safe_load(SMALL)
    assert loads(yaml.safe_dump(data), "x") == loads(SMALL, "x")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("limits: {ttft: 500}", "no metric 'ttft'"),
        ("limits: {ttft_ms: 0}", "greater than 0"),
        ('limits: {"*@decode[8K-c1]": 5}', "no metric"),
        ('limits: {"ttft_ms@decode[8k-*]": 5}', "fits no cell"),
        ("gate: {ttft_ms: ignore}", "watch"),
        ('gate: {"*@decode[8K]": watch}', "is not a cell"),
        ('floor: {"ttft_ms@decode[8K-c1]": 5}', "no metric"),
        ("floor: {ttft_ms: -1}", "greater than or equal to 0"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_with_its_line(line: str, why: str) -> None:
    """Limits, what is watched, floors: each would else be without effect, and nobody would know."""
    text = SMALL.replace("runs:\n", f"{line}\nruns:\n", 1)
    with pytest.raises(ConfigError, match=re.escape(why)) as error:
        loads(text, "lab.yaml")
    assert str(error.value).startswith("lab.yaml:5: ")


def test_limits_watches_and_floors_are_read_and_written_as_they_are() -> None:
    """A line each, for review."""
    lines = """\
limits: {'ttft_p99_ms@decode[8K-c16]': 500, total_tok_s: 100}
gate: {'*@decode[*-c1]': watch}
floor: {ttft_ms: 15}
"""
    text = SMALL.replace("runs:\n", f"{lines}runs:\n", 1)
    assert dumps(loads(text, "x")) == text
