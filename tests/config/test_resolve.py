"""Option values: where they come from, and what is said about those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

MARK = "=> "
CONFTEST = r"""
import pytest
from pytest_llmperf.model.errors import LlmPerfError
from pytest_llmperf.config.options import Values, list_given
from pytest_llmperf.config.resolve import read_connection, read_settings

def pytest_sessionfinish(session):
    values = Values(session.config, {profile})
    try:
        url = values.get("url") or "http://h"
        settings, connection = read_settings(values), read_connection(values, url)
        print("\n=> RESULT", {show})
        print("\n=> REPR", settings, connection)
    except LlmPerfError as error:
        print("\n=> ERROR", error)
"""

# unset, pytest-asyncio warns, and before pytest 9 that is an error of the inner run here
SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")


def resolve(
    pytester: pytest.Pytester, args: list[str], show: str = "''", profile: str = "{}"
) -> str:
    """What the settings come out as: the line that starts with RESULT or ERROR."""
    pytester.makeconftest(CONFTEST.replace("{show}", show).replace("{profile}", profile))
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("-s", *SCOPE, *args)
    return next(o.split(MARK)[1] for o in result.outlines if MARK in o)


def test_what_a_cell_needs_to_be_measured_again(pytester: pytest.Pytester) -> None:
    """The command line's options, without server, profile, reports, updates and secrets."""
    args = [
        "--llm-url=http://x", "--hardware=lab", "--llm-api-key=secret", "--llm-report=none",
        "--llm-header=X-Key: secret", "--llm-duration=12", "--llm-contexts=8K,12K", "--llm-gate",
        "ttft_p99_ms", "--llm-insecure", "--llm-update-reason=x", "--update-baselines",
    ]  # fmt: skip
    pytester.makeini("[pytest]\nllm_settle = 1")
    given = resolve(pytester, args, "' '.join(list_given(session.config))")
    assert given.removeprefix("RESULT ") == (
        "--llm-insecure --llm-contexts 8K,12K --llm-duration 12 --llm-gate ttft_p99_ms"
    )


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--llm-duration=0"], "--llm-duration: 0 must be at least 0.1 s"),
        (["--llm-duration=nan"], "--llm-duration: nan must be"),
        (["--llm-duration=soon"], "--llm-duration: 'soon' is not a number"),
        (["--llm-max-tokens=1.5"], "--llm-max-tokens: '1.5' is not a token count"),
        (["--llm-kv-tokens=0"], "--llm-kv-tokens: 0 must be at least 1"),
        (["--llm-url=gpu1:8000"], "--llm-url: 'gpu1:8000' is not a server address"),
        (["--llm-header=novalue"], "--llm-header: write NAME:VALUE"),
        (["--llm-extra-body=[1]"], "--llm-extra-body: must be a JSON object"),
        (["--llm-extra-body={"], "--llm-extra-body: not JSON"),
        (["--llm-tolerance=speed=0.1"], "--llm-tolerance: 'speed=0.1': write METRIC=0.1"),
        (["--llm-tolerance=ttft_ms=30"], "a fraction, 0.1 is 10 %"),
        (["--llm-tolerance=ttft_ms@decode[8K]=0.2"], "is not a cell"),
        (["--llm-gate=speed"], "--llm-gate: 'speed' is none of"),
        (["--llm-run-info=missing.yaml"], "--llm-run-info: cannot read missing.yaml"),
        (["--llm-report=pdf"], "--llm-report: 'pdf' is none of html, json, md"),
        (["--llm-report=md:."], "--llm-report: 'md:.' names no file"),
        (["--llm-report=md:x", "--llm-report=json:x"], "--llm-report: two formats in one file"),
        (["--llm-ca=missing.pem"], "--llm-ca: there is no file missing.pem"),
        (["--llm-api-key-file=missing"], "--llm-api-key-file: cannot read missing"),
        (["--llm-update-reason=x"], "go with --update-baselines"),
        (["--llm-workers=some"], "--llm-workers: 'some' is no number of processes; write 2, or"),
        (["--llm-workers=0"], "--llm-workers: '0' is no number of processes"),
        (["--llm-workers=2", "--llm-load=popen"], "--llm-load says which processes"),
        (["--llm-load=gpu2"], "--llm-load: 'gpu2': write ssh=user@host//python=python3, or 4*pop"),
        (["--llm-load=0*popen"], "--llm-load: '0*popen': write"),
    ],
)
def test_a_value_that_cannot_be_used_gets_one_clear_error(
    pytester: pytest.Pytester, args: list[str], problem: str
) -> None:
    """The option is named, and what to write instead."""
    assert problem in resolve(pytester, args)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "None ()"),
        (["--llm-workers=auto"], "None ()"),
        (["--llm-workers=3"], "3 ()"),
        (
            ["--llm-load=ssh=-p 22 me@gpu2//python=python3", "--llm-load=2*popen"],
            "None ('ssh=-p 22 me@gpu2//python=python3', 'popen', 'popen')",
        ),
    ],
)
def test_who_generates_the_load(pytester: pytest.Pytester, args: list[str], expected: str) -> None:
    """As many processes as it takes, a number of them, or specifications as pytest --tx has."""
    shown = resolve(pytester, args, "settings.workers, settings.load")
    assert shown == f"RESULT {expected}"


@pytest.mark.parametrize(
    ("args", "ini", "profile", "expected"),
    [
        (["--llm-duration=5"], "llm_duration = 7", "{'duration': 9}", "5.0"),
        ([], "llm_duration = 7", "{'duration': 9}", "9.0"),
        ([], "llm_duration = 7", "{}", "7.0"),
        ([], "", "{}", "30.0"),
    ],
)
def test_the_command_line_beats_the_profile_beats_ini_beats_the_default(
    pytester: pytest.Pytester, args: list[str], ini: str, profile: str, expected: str
) -> None:
    """Each value comes from the first place that gives one."""
    pytester.makeini(f"[pytest]\n{ini}\n")
    assert f"RESULT {expected}" in resolve(pytester, args, "settings.timing.duration_s", profile)


def test_native_toml_is_read_typed(pytester: pytest.Pytester) -> None:
    """pytest's own TOML table takes numbers, booleans and lists of strings."""
    pytest.importorskip("pytest", minversion="9.0")
    pytester.makepyprojecttoml(
        """
        [tool.pytest]
        llm_duration = 7.5
        llm_contexts = ["8K", "16K"]
        llm_tolerance = ["ttft_ms=0.3", "itl_ms@decode[8K-c1]=0.2"]
        llm_insecure = true
        llm_max_tokens = "256"
        """
    )
    show = (
        "(settings.timing.duration_s, settings.grid.contexts, dict(settings.tolerances),"
        " connection.verify, settings.workload.max_tokens)"
    )
    assert resolve(pytester, [], show).removeprefix("RESULT ") == str(
        (7.5, (8192, 16384), {"ttft_ms": 0.3, "itl_ms@decode[8K-c1]": 0.2}, False, 256)
    )


def test_a_number_where_toml_has_to_have_text_is_told_so(pytester: pytest.Pytester) -> None:
    """``llm_workers`` may be a word too, and pytest's own table takes one type for a key."""
    pytest.importorskip("pytest", minversion="9.0")
    pytester.makepyprojecttoml("[tool.pytest]\nllm_workers = 2")
    assert "llm_workers" in (found := resolve(pytester, []))
    assert "write it in quotes" in found


@pytest.mark.parametrize("line", ["llm_runs = many", "llm_insecure = perhaps"])
def test_an_ini_value_of_the_wrong_type_is_named(pytester: pytest.Pytester, line: str) -> None:
    """As one of the command line is; the collection of a file does not fail."""
    pytester.makeini(f"[pytest]\n{line}")
    assert f"the ini key {line.split()[0]}: " in resolve(pytester, [])


@pytest.mark.parametrize("source", ["option", "environment", "file"])
def test_the_key_is_read_and_never_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """From the option, LLMPERF_API_KEY or a file; a printed Settings does not hold it."""
    args = {"option": ["--llm-api-key=hush"], "file": ["--llm-api-key-file=key"]}.get(source, [])
    if source == "environment":
        monkeypatch.setenv("LLMPERF_API_KEY", "hush")
    Path(pytester.path, "key").write_text("hush\n")
    pytester.makeconftest(
        CONFTEST.replace("{show}", "connection.api_key == 'hush'").replace("{profile}", "{}")
    )
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("-s", *SCOPE, *args)
    result.stdout.fnmatch_lines(["*RESULT True*", "*REPR Settings*"])
    result.stdout.no_fnmatch_line("*hush*")


def test_run_info_comes_from_pairs_and_files(pytester: pytest.Pytester) -> None:
    """Values stay text as written: a version 0.10 is not a number."""
    Path(pytester.path, "info.yaml").write_text("driver: 580.10\ncommit: 1e5\n")
    args = ["--llm-run-info=info.yaml", "--llm-run-info=quantization=MXFP4+FP8"]
    line = resolve(pytester, args, "dict(settings.run_info)")
    assert "{'driver': '580.10', 'commit': '1e5', 'quantization': 'MXFP4+FP8'}" in line


def test_reports_default_to_all_three_and_can_be_chosen(pytester: pytest.Pytester) -> None:
    """--llm-report picks formats and paths; none switches files off."""
    show = "{k: str(v) for k, v in settings.reports.items()}"
    assert "report.html" in resolve(pytester, [], show)
    assert "RESULT {'md': 'x.md'}" in resolve(pytester, ["--llm-report=md:x.md"], show)
    assert "RESULT {}" in resolve(pytester, ["--llm-report=none"], show)


def test_the_scheme_of_an_address_may_be_written_in_capitals(pytester: pytest.Pytester) -> None:
    """As RFC 3986 has it."""
    assert resolve(pytester, ["--llm-url=HTTP://gpu1:8000"]).startswith("RESULT")


def test_limits_are_keys_and_values(pytester: pytest.Pytester) -> None:
    """Of the command line or of the ini file."""
    args = ["--llm-limit=ttft_p99_ms=500", "--llm-limit", "total_tok_s@decode[*-c1]=100.5"]
    assert resolve(pytester, args, "settings.limits") == (
        "RESULT {'ttft_p99_ms': 500.0, 'total_tok_s@decode[*-c1]': 100.5}"
    )
    pytester.makeini("[pytest]\nllm_limit =\n  itl_ms=20\n  ttft_ms@decode[8K-*]=400")
    assert resolve(pytester, [], "settings.limits") == (
        "RESULT {'itl_ms': 20.0, 'ttft_ms@decode[8K-*]': 400.0}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ttft_ms", "write METRIC=VALUE"),
        ("ttft=5", "no metric 'ttft'"),
        ("ttft_ms=fast", "could not convert"),
        ("ttft_ms=0", "above 0"),
        ("ttft_ms=nan", "above 0"),
        ("ttft_ms@decode[8k-c1]=5", "should be written"),
    ],
)
def test_a_limit_that_cannot_be_is_named(
    pytester: pytest.Pytester, text: str, problem: str
) -> None:
    assert problem in resolve(pytester, [f"--llm-limit={text}"])
