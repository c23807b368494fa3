"""Faults that gates in the wild had, seen from the command line. Those that the verdict alone
decides are in tests/verdict/test_cases_g.py."""

from __future__ import annotations

import json
import re

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.commands.main import main
from pytest_llmperf.measure.measurer import Measurer
from pytest_llmperf.model.result import RunResult, Status
from pytest_llmperf.report.json import dumps, read
from tests.gate.project import CELLS, GRID, LAB, SHORT, WIDE, words, write_profile

WIDE_OF_COMPARE = [option.replace("--llm-", "--") for option in WIDE]


@pytest.fixture
def broken(quick: None, measured: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode cells come back invalid."""

    async def answer(self: Measurer, cell: object) -> object:
        first = next(r.measurement for r in measured.cells if r.cell == cell.id)  # type: ignore[attr-defined]
        assert first is not None
        return first.model_copy(update={"status": Status.INVALID, "reason": "2 requests failed"})

    monkeypatch.setattr(Measurer, "decode", answer)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("mode", ["all", "add", "moved", "new"])
def test_g3_a_broken_run_is_not_saved(
    perf: pytest.Pytester, measured: RunResult, url: str, mode: str
) -> None:
    """Its invalid cells fail although the baseline is being updated, and stay as they were."""
    path = write_profile(perf, measured, 1.0)
    before = load(path)
    result = perf.runpytest(
        "perf_tests", url, *LAB, "--update-baselines", f"--llm-update-mode={mode}",
        "--llm-update-reason=because",
    )  # fmt: skip
    assert result.ret == 1
    assert result.parseoutcomes()["failed"] == 2
    after = load(path)
    for cell in ("decode[512-c1]", "decode[512-c2]"):
        assert after.cells[cell] == before.cells[cell]


@pytest.mark.usefixtures("broken")
def test_g3_a_new_profile_holds_no_broken_cell(perf: pytest.Pytester, url: str) -> None:
    """Only what was measured."""
    result = perf.runpytest(
        "perf_tests", url, *GRID, *SHORT, "--hardware=new", "--update-baselines"
    )
    assert result.ret == 1
    assert list(load(perf.path / "baselines/new.yaml").cells) == ["prefill[512]"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_g5_g6_direction_from_outside(
    perf: pytest.Pytester, measured: RunResult, url: str, factor: float
) -> None:
    """Slower than the baseline fails, faster passes and is called suspicious."""
    write_profile(perf, measured, factor)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE)
    assert result.ret == (1 if factor > 1 else 0), words(result)
    result.assert_outcomes(**{"failed" if factor > 1 else "passed": 3}, skipped=1)
    if factor < 1:
        assert "IMPROVED" in words(result)
        assert "suspicious" in (perf.path / "llmperf-report/report.md").read_text() + words(result)


@pytest.mark.usefixtures("quick")
def test_g6_improvements_fail_only_by_option(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    write_profile(perf, measured, 0.1)
    result = perf.runpytest("perf_tests", url, *LAB, *WIDE, "--llm-fail-on-improvement")
    result.assert_outcomes(failed=3, skipped=1)


@pytest.mark.usefixtures("quick")
def test_g8_512_and_its_other_spellings_are_one_cell(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """The id at writing is the id at reading, however the context was written."""
    write_profile(perf, measured, 1.0)
    result = perf.runpytest(
        "perf_tests", url, *LAB, *WIDE, "--llm-contexts=0512", "--llm-concurrency=2,1"
    )
    result.assert_outcomes(passed=3, deselected=1)
    assert "NEW" not in words(result)


@pytest.mark.parametrize(
    ("field", "value"), [("model", "org/other"), ("engine", "sglang"), ("max_tokens", "99")]
)
def test_g10_the_baseline_of_something_else_is_not_compared(
    perf: pytest.Pytester, measured: RunResult, url: str, field: str, value: str
) -> None:
    """Before any load, naming both values."""
    path = write_profile(perf, measured, 1.0)
    text = re.sub(rf"(\b{field}: )[^,}}]+", rf"\g<1>{value}", path.read_text(), count=1)
    if field == "model":
        text = re.sub(r"(\bserved_model: )[^,}]+", rf"\g<1>{value}", text, count=1)
    path.write_text(text)
    result = perf.runpytest("perf_tests", url, *LAB)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{field}: baseline *{value}*, here *"])


@pytest.mark.usefixtures("quick")
def test_g11_one_run_is_labelled_weak(perf: pytest.Pytester, measured: RunResult, url: str) -> None:
    """Windows that know their error, one run in the baseline: the stated default, called weak."""
    write_profile(perf, measured, 1.0)
    perf.runpytest("perf_tests", url, *LAB, "-k", "prefill")
    (cell,) = json.loads((perf.path / "llmperf-report/results.json").read_text())["cells"]
    (rate,) = [c for c in cell["comparisons"] if c["metric"] == "prefill_tok_s"]
    assert rate["weak"]
    assert rate["tolerance"] >= 0.07


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (10.0, 1)])
def test_g13_a_comparison_can_fail(
    perf: pytest.Pytester, measured: RunResult, factor: float, code: int
) -> None:
    """`llmperf compare` exits 1 on a regression, by a threshold of each metric's own."""
    path = write_profile(perf, measured, factor)
    (perf.path / "now.json").write_text(dumps(measured))
    assert main(["compare", str(path), str(perf.path / "now.json"), *WIDE_OF_COMPARE]) == code


@pytest.mark.usefixtures("quick")
def test_g15_what_a_run_writes_is_strict_json(
    perf: pytest.Pytester, measured: RunResult, url: str
) -> None:
    """No NaN or Infinity in it, and none is read."""
    write_profile(perf, measured, 1.0)
    perf.runpytest("perf_tests", url, *LAB, *WIDE)
    path = perf.path / "llmperf-report/results.json"

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(path.read_text(), parse_constant=refuse)
    assert json.loads(dumps(read(path))) == json.loads(path.read_text())
    assert {f"test_{r.cell}" for r in read(path).cells} == set(CELLS)
