"""Progress as a person sees it: in a terminal, and in a log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.progress.lines import Lines
from pytest_llmperf.progress.show import choose_view

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [
    *(sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider"),
    *("perf_tests", "--llm-url=sim", "--llm-contexts=512", "--llm-concurrency=2"),
    *("--llm-duration=1", "--llm-settle=0.3", "--llm-max-tokens=4096", "--llm-report=none"),
    *("-k", "test_prefill or test_decode"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "perf_tests"
    folder.mkdir()
    for name in ("test_prefill.py", "test_decode.py"):
        (folder / name).write_text((ROOT / "perf_tests" / name).read_text())
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    )
    return tmp_path


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    return {**kept, "TERM": "xterm-256color", **changes}


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (
            ["-v", "--capture=fd"],
            [
                r"perf_tests/test_prefill\.py::test_prefill\[512\] PASSED MEASURED +\[ 50%\]",
                r"perf_tests/test_decode\.py::test_decode\[512-c2\] PASSED MEASURED +\[100%\]",
            ],
        ),
        (
            ["--capture=sys"],
            [
                r"perf_tests/test_prefill\.py \. +\[ 50%\]",
                r"perf_tests/test_decode\.py \. +\[100%\]",
            ],
        ),
    ],
)
def test_in_a_terminal_an_area_is_drawn_and_gone_before_pytest_goes_on(
    project: Path, args: list[str], lines: list[str]
) -> None:
    """While a cell runs its numbers are seen; in the end every line of pytest is as without."""
    from tests.progress.terminal import run_in_terminal

    seen = run_in_terminal([*COMMAND, *args], project, environment())
    assert seen.code == 0, seen.screen
    drawn = [frame for frame in seen.frames if "decode[512-c2] measuring" in frame]
    assert drawn
    numbers = re.compile(r"^[\d.,]+ tok/s +2/2 active +\d+ waiting +[\d,]+ tokens$", re.M)
    assert any(numbers.search(frame) for frame in drawn), drawn[-1]
    assert re.search(r"^cell 2 of 2, \d+ s, about \d+ s left$", drawn[-1], re.M)
    # the matrix: prefill is measured, decode runs
    assert re.search(r"^ tok/s +prefill +c2\n 512 +[\d.,]+ +\.\.\.$", drawn[-1], re.M)

    shown = [line for line in seen.screen.splitlines() if line]
    start = next(i for i, line in enumerate(shown) if re.fullmatch(lines[0], line))
    assert re.fullmatch(lines[1], shown[start + 1]), seen.screen
    assert "== llmperf ==" in shown[start + 2]
    assert "cell 2 of 2" not in seen.screen
    assert seen.raw.rfind("\x1b[?25h") > seen.raw.rfind("\x1b[?25l"), "the cursor stays hidden"


def test_in_a_log_a_cell_has_one_line_at_its_start_and_one_with_its_result(project: Path) -> None:
    """Not one a second; and pytest's own file name is there again for its outcome letter."""
    run = subprocess.run(
        COMMAND, cwd=project, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout
    assert "\x1b" not in run.stdout
    lines = run.stdout.splitlines()
    # a busy host makes more than one attempt
    start = max(i for i, line in enumerate(lines) if "measuring decode" in line)
    expected = (
        r"perf_tests/test_decode\.py ",
        r"llmperf: measuring decode\[512-c2\](?:, attempt \d)? \(2 of 2, about \d+ s left\)",
        r"llmperf: decode\[512-c2\]: [\d.,]+ tok/s, TTFT \d+ ms, ITL [\d.]+ ms",
        r"perf_tests/test_decode\.py \. +\[100%\]",
    )
    for line, pattern in zip(lines[start - 1 :], expected, strict=False):
        assert re.fullmatch(pattern, line), run.stdout


def configured(pytester: pytest.Pytester, *args: str) -> pytest.Config:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester.parseconfigure(*args)


def view_name(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *args: str) -> str:
    """The view of a run on a terminal with these arguments."""
    config = configured(pytester, *args)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        monkeypatch.setattr(reporter, "isatty", True)
        ours, theirs = os.openpty()
        monkeypatch.setattr(reporter._tw, "_file", os.fdopen(theirs, "w"))
    view = choose_view(config)
    if view is not None:
        view.close()
    if reporter is not None:
        reporter._tw._file.close()
        os.close(ours)
    return type(view).__name__


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ([], {}, "Area"),
        (["-v"], {}, "Area"),
        (["--capture=sys"], {}, "Area"),
        (["-q"], {}, "NoneType"),
        (["-p", "no:terminal"], {}, "NoneType"),
        (["-s"], {}, "Lines"),
        (["--log-cli-level=INFO"], {}, "Lines"),
        ([], {"CI": "true"}, "Lines"),
        ([], {"TERM": "dumb"}, "Lines"),
    ],
)
def test_an_area_only_where_the_terminal_is_ours_alone(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    env: dict[str, str],
    expected: str,
) -> None:
    """Prints under -s and live logs would run through it; CI and -q do not want it."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert view_name(pytester, monkeypatch, *args) == expected


def test_without_a_terminal_lines_are_written(pytester: pytest.Pytester) -> None:
    """Output that goes to a file or a pipe."""
    assert isinstance(choose_view(configured(pytester)), Lines)
