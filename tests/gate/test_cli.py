"""``llmperf``: compare, report, schema, profiles, init, sim. Nothing here needs a server."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.commands.main import _parser, main
from pytest_llmperf.model.result import Measurement, Outcome, RunResult, Status
from pytest_llmperf.report.json import dumps
from tests.gate.project import faster, profile_text
from tests.support.results import published_run


def write(run: RunResult, path: Path) -> None:
    path.write_text(dumps(run), encoding="utf-8")


def run_at(factor: float, **changes: object) -> RunResult:
    """A published report as a run at a fraction of its speed."""
    run = published_run(compared=False)
    cells = [
        record
        if record.measurement is None or record.measurement.status is not Status.VALID
        else faster(record, factor)
        for record in run.cells
    ]
    cells = [r.model_copy(update={"attempts": [r.measurement]}) for r in cells if r.measurement]
    return run.model_copy(update={"cells": cells, **changes})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """a.json as published, slow.json 20 % slower."""
    write(run_at(1.0), tmp_path / "a.json")
    write(run_at(0.8, date="2026-12-01T00:00:00+00:00"), tmp_path / "slow.json")
    return tmp_path


def llmperf(*args: object) -> int:
    return main([str(arg) for arg in args])


def test_compare_with_itself_is_0(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No regression; the same summary as after a run."""
    assert llmperf("compare", results / "a.json", results / "a.json") == 0
    out = capsys.readouterr().out
    assert "No regression in" in out
    assert "OVERCAP" in out


def test_compare_with_slower_results_is_1(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the report it writes has the verdicts of the comparison. No command measures against a
    file of results, so none is offered."""
    made = results / "compared.json"
    assert llmperf("compare", results / "a.json", results / "slow.json", "--json", made) == 1
    out = capsys.readouterr().out
    assert "REGRESSED decode[8K-c16]" in out
    assert f"{results / 'slow.json'} against {results / 'a.json'}" in out
    assert "profile" not in out.splitlines()[1]
    assert "Measure the failed cells again" not in out
    cells = json.loads(made.read_text())["cells"]
    assert {c["outcome"] for c in cells} >= {"REGRESSED", "OVERCAP"}


def test_compare_with_faster_results_is_0(results: Path) -> None:
    """Direction: what is a regression one way is an improvement the other way."""
    assert llmperf("compare", results / "slow.json", results / "a.json") == 0


def test_compare_with_a_baseline(results: Path) -> None:
    """The YAML of a profile, alike for one run of it."""
    path = results / "box.yaml"
    path.write_text(profile_text(published_run(compared=False), [1.0]).replace("lab", "box"))
    assert llmperf("compare", path, results / "a.json") == 0
    assert llmperf("compare", path, results / "slow.json") == 1


def test_several_references_are_so_many_runs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three give noise, and the matrix a verdict: 7 % everywhere, below any cell's tolerance."""
    names = []
    for n, factor in enumerate((0.999, 1.0, 1.001)):
        names.append(results / f"run{n}.json")
        write(run_at(factor, date=f"2026-12-0{n + 2}T00:00:00+00:00"), names[-1])
    write(run_at(0.93), results / "little.json")
    assert llmperf("compare", *names, results / "little.json") == 1
    out = capsys.readouterr().out
    assert "\nThe cells together are worse" in out
    assert "REGRESSED" not in out
    assert llmperf("compare", *names, results / "a.json") == 0


def test_results_confirm_one_another(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a start of the server: one slow one of three is no regression, three are. The report
    has every attempt, with its start."""
    names = {}
    for n, (name, factor) in enumerate(
        {"good": 1.0, "fine": 1.0, "bad": 0.8, "worse": 0.81}.items()
    ):
        names[name] = results / f"{name}.json"
        write(run_at(factor, date=f"2026-12-0{n + 2}T00:00:00+00:00"), names[name])
    made = results / "compared.json"
    pair = ("compare", results / "a.json", results / "slow.json", "--json", made)

    def confirmed(*others: str) -> int:
        return llmperf(*pair, *(f"--confirm={names[other]}" for other in others))

    assert confirmed("good", "fine") == 0
    assert confirmed("bad", "worse") == 1
    cell = next(c for c in json.loads(made.read_text())["cells"] if c["outcome"] == "REGRESSED")
    assert [attempt["start"] for attempt in cell["attempts"]] == [1, 2, 3]
    assert "(start 3 of the server)" in capsys.readouterr().out.replace("\n    ", " ")


def test_a_second_job_of_the_failed_cells_only_confirms_those(results: Path) -> None:
    """As of ``--lf``; the other cells keep their verdict, and starts are counted on from a run that
    had several."""
    slow = run_at(0.8, date="2026-12-03T00:00:00+00:00")
    cell = "decode[8K-c16]"
    two = [
        r.model_copy(update={"attempts": [r.attempts[0], *_later(r.attempts[0])]})
        if r.cell == cell
        else r
        for r in slow.cells
    ]
    write(slow.model_copy(update={"cells": two}), results / "first.json")
    again = run_at(0.8, date="2026-12-04T00:00:00+00:00")
    only = [r for r in again.cells if r.cell == cell]
    write(again.model_copy(update={"cells": only}), results / "second.json")
    made = results / "compared.json"
    llmperf(
        "compare", results / "a.json", results / "first.json",
        "--confirm", results / "second.json", "--json", made,
    )  # fmt: skip
    cells = {c["cell"]: c for c in json.loads(made.read_text())["cells"]}
    assert [attempt["start"] for attempt in cells[cell]["attempts"]] == [1, 2, 3]
    assert len(cells) == len(slow.cells)
    assert len(cells["decode[8K-c1]"]["attempts"]) == 1


def _later(attempt: Measurement) -> list[Measurement]:
    return [attempt.model_copy(update={"start": 2})]


def test_a_run_cannot_confirm_itself(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of a file is no second run."""
    (results / "copy.json").write_text((results / "slow.json").read_text())
    pair = ("compare", results / "a.json", results / "slow.json")
    assert llmperf(*pair, "--confirm", results / "copy.json") == 4
    assert "is the same run as" in capsys.readouterr().err


def test_a_smaller_kv_cache_is_1_and_what_changed_is_named(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alike a run's own gate; cells that are as fast as before stay PASS."""
    run = run_at(1.0, date="2026-12-02T00:00:00+00:00")
    assert run.server is not None
    assert run.server.kv_tokens is not None
    small = {"kv_tokens": run.server.kv_tokens * 9 // 10, "version": "0.34"}
    changed = run.model_copy(update={"server": run.server.model_copy(update=small)})
    write(changed, results / "small.json")
    made = results / "compared.json"
    assert llmperf("compare", results / "a.json", results / "small.json", "--json", made) == 1
    report = json.loads(made.read_text())
    assert [finding["code"] for finding in report["findings"]] == ["kv-cache"]
    fields = [fact["field"] for fact in report["changed_facts"]]
    assert fields == ["engine version", "KV cache"]
    assert "REGRESSED" not in {cell["outcome"] for cell in report["cells"]}
    assert "The server is not what it was: kv-cache" in capsys.readouterr().out


def test_nothing_in_common_is_1(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero overlap is no pass; what was not measured is listed."""
    run = run_at(1.0)
    part = [r for r in run.cells if r.cell.startswith("prefill")]
    rest = [r for r in run.cells if not r.cell.startswith("prefill")]
    write(run.model_copy(update={"cells": part}), results / "p.json")
    write(run.model_copy(update={"cells": rest}), results / "d.json")
    assert llmperf("compare", results / "p.json", results / "d.json") == 1
    said = capsys.readouterr()
    assert "nothing to compare with: every cell is new" in said.err
    assert "Nothing to compare with. Every cell is new, so this run is not green." in said.out
    assert "only in the reference: prefill[8K]" in said.out


def test_cells_without_a_measurement_are_no_pass(results: Path) -> None:
    """Whatever outcome stands beside them."""
    run = run_at(1.0)
    bare = [r.model_copy(update={"measurement": None}) for r in run.cells]
    write(run.model_copy(update={"cells": bare}), results / "bare.json")
    assert llmperf("compare", results / "a.json", results / "bare.json") == 1


def test_an_invalid_cell_is_1(results: Path) -> None:
    """Also where the reference has it valid; and it is never a reference itself."""
    run = run_at(1.0)
    first = run.cells[0]
    assert first.measurement is not None
    broken = first.measurement.model_copy(update={"status": Status.INVALID, "reason": "died"})
    bad = first.model_copy(
        update={"measurement": broken, "attempts": [broken], "outcome": Outcome.INVALID}
    )
    write(run.model_copy(update={"cells": [bad, *run.cells[1:]]}), results / "bad.json")
    assert llmperf("compare", results / "a.json", results / "bad.json") == 1
    assert llmperf("compare", results / "bad.json", results / "a.json") == 0


def test_an_attempt_before_a_rerun_is_not_judged_again(results: Path) -> None:
    """pytest-rerunfailures keeps it in the record, though the last attempt was valid."""
    run = run_at(1.0)
    first = run.cells[0]
    assert first.measurement is not None
    broken = first.measurement.model_copy(update={"status": Status.INVALID, "reason": "died"})
    again = first.model_copy(update={"attempts": [broken, first.measurement]})
    write(run.model_copy(update={"cells": [again, *run.cells[1:]]}), results / "again.json")
    assert llmperf("compare", results / "a.json", results / "again.json") == 0


@pytest.mark.parametrize("option", [[], ["--allow-mismatch"]])
def test_another_model_is_not_comparable(
    results: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 4 naming both, unless it is wished."""
    run = run_at(1.0)
    assert run.server is not None
    other = run.server.model_copy(update={"model": "other", "model_root": "org/other"})
    write(run.model_copy(update={"server": other}), results / "other.json")
    code = llmperf("compare", results / "a.json", results / "other.json", *option)
    assert code == (0 if option else 4)
    said = capsys.readouterr()
    assert "org/other" in said.err + said.out
    both = (results / "a.json", results / "other.json")
    assert llmperf("compare", *both, results / "a.json", *option) == 4
    err = capsys.readouterr().err
    assert "other.json is not what" in err
    assert "baseline not updated" not in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "no schema_version"),
        ('{"schema_version": 99}', "schema_version is 99"),
        ('{"schema_version": 1, "date": NaN}', "NaN"),
    ],
)
@pytest.mark.parametrize("bad_first", [True, False])
def test_bad_input_is_4(
    results: Path, text: str, problem: str, bad_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either file, with the file named."""
    bad = results / "bad.json"
    bad.write_text(text)
    files = [bad, results / "a.json"]
    assert llmperf("compare", *(files if bad_first else reversed(files))) == 4
    err = capsys.readouterr().err
    assert problem in err
    assert "bad.json" in err


@pytest.mark.parametrize("args", [["compare"], ["compare", "x.json"], ["nonesuch"], []])
def test_bad_usage_is_4(args: list[str]) -> None:
    """Not argparse's 2, which pytest gives to an interrupted run."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 4


def test_a_tolerance_can_be_set(results: Path) -> None:
    pair = (results / "a.json", results / "slow.json")
    names = ("total_tok_s", "itl_ms", "ttft_ms", "steps_s", "prefill_tok_s")
    wide = [f"--tolerance={name}=0.5" for name in names]
    assert llmperf("compare", *pair, *wide) == 0
    assert llmperf("compare", *pair, "--tolerance=speed=0.5") == 4


def test_report_puts_several_side_by_side(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One HTML of all; Markdown is for one run. What was written is said."""
    page = results / "out/all.html"
    assert llmperf("report", results / "a.json", results / "slow.json", "--html", page) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    text = page.read_text()
    assert "slow.json" in text
    assert "-20.0" in text.replace("−", "-")
    again = results / "a.md"
    assert llmperf("report", results / "a.json", "--md", again) == 0
    assert "Sustained decode" in again.read_text()
    assert llmperf("report", results / "a.json", results / "slow.json", "--md", again) == 4


def test_report_without_a_file_prints_the_summary(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several each under its name."""
    both = [results / "a.json", results / "slow.json"]
    assert llmperf("report", both[0]) == 0
    alone = capsys.readouterr().out
    assert "Sustained decode: total tok/s" in alone
    assert llmperf("report", *both) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{both[0]}:\n{alone}\n{both[1]}:\n")


def test_every_argument_is_explained() -> None:
    """``llmperf COMMAND --help`` leaves none bare."""
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    bare = [
        f"{name} {action.dest}"
        for name, command in commands.choices.items()
        for action in command._actions
        if not action.help
    ]
    assert len(commands.choices) > 5
    assert not bare


@pytest.mark.parametrize(
    "command",
    [
        "pytest_llmperf.commands.main report a.json",
        "pytest_llmperf.commands.main compare a.json a.json",
        "pytest_llmperf.commands.main schema",
        "pytest_llmperf.commands.main profiles",
        "pytest_llmperf.commands.main --help",
        "pytest_llmperf.commands.main report --help",
        "pytest_llmperf.commands.main sim residuals h200nvl_x2",
        "pytest_llmperf.sim residuals h200nvl_x2",
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(results: Path, command: str) -> None:
    """As in ``llmperf report a.json | head -1``."""
    words = [sys.executable, "-m", *command.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=results, **pipes) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("redirect", ["", ">&-"])
def test_a_terminal_that_takes_no_umlaut_or_none_at_all_changes_no_verdict(
    results: Path, redirect: str
) -> None:
    """The exit status 1 of a traceback would say that something got slower."""
    run = run_at(1.0)
    assert run.server is not None
    model = run.server.model_copy(update={"model": "mödel", "model_root": None})
    write(run.model_copy(update={"server": model}), results / "u.json")
    command = f"{sys.executable} -m pytest_llmperf.commands.main compare u.json u.json {redirect}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=results,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert redirect or "m\\xf6del" in done.stdout


def test_schema_is_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert llmperf("schema") == 0
    assert "RunResult" in json.loads(capsys.readouterr().out)["title"] + "RunResult"


def test_profiles_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped ones and the user's; a broken one does not hide the others."""
    (tmp_path / "mine.yaml").write_text("schema: 1\n")
    (tmp_path / "gone.yaml").symlink_to("nowhere.yaml")
    assert llmperf("profiles", "--baselines", tmp_path) == 0
    out = capsys.readouterr().out
    assert "rtxpro6k_x4  4 x RTX PRO 6000" in out
    assert "mine" in out
    assert "gone" not in out


def test_init_writes_a_project_that_collects(tmp_path: Path) -> None:
    assert llmperf("init", tmp_path) == 0
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "perf_tests", "--collect-only", "-q", "-W", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout
    assert "test_matrix.py::test_matrix" in run.stdout


def test_sim_is_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert llmperf("sim", "serve", "nonesuch", "--port", "0") == 4
    assert "nonesuch" in capsys.readouterr().err
    assert llmperf("sim", "serve", "--port", "70000") == 4
    assert "port 70000" in capsys.readouterr().err
    assert llmperf("sim", "nonesuch") == 4
    assert "nonesuch" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        llmperf("sim", "--help")
    assert end.value.code == 0


def test_nothing_heavy_is_imported_for_a_small_command() -> None:
    """`llmperf --version` answers at once."""
    code = (
        "import sys; from pytest_llmperf.commands.main import _parser; _parser(); "
        "print(sorted({'numpy', 'pydantic', 'httpx', 'yaml', 'pytest'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert run.stdout.strip() == "[]"
