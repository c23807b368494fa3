"""``llmperf import`` from the shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.baseline.file import load
from pytest_llmperf.commands.main import BAD_INPUT, OK, main

SAMPLE = Path(__file__).parent.parent / "data" / "ancestor" / "llm_decode_bench-0.4.18.json"


def run(file: Path, folder: Path) -> int:
    return main(["import", str(file), "bench", "--baselines", str(folder)])


def test_the_profile_is_written_and_what_it_lacks_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory is made if need be."""
    folder = tmp_path / "baselines"
    assert run(SAMPLE, folder) == OK
    assert len(load(folder / "bench.yaml").cells) == 8
    out = capsys.readouterr().out
    assert "8 cells" in out
    assert "not in it: GPU model" in out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile of that name stays as it is."""
    path = tmp_path / "bench.yaml"
    path.write_text("mine")
    assert run(SAMPLE, tmp_path) == BAD_INPUT
    assert path.read_text() == "mine"
    assert "choose another name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.json", None, "cannot be read"),
        ("other.json", '{"results": []}', "is this a result file of llm-inference-bench"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_on_stderr(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str | None,
    words: str,
) -> None:
    """And nothing is written."""
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    assert run(file, tmp_path / "baselines") == BAD_INPUT
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "baselines").exists()
