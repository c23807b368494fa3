"""``llmperf init`` gives a repository what it needs and overwrites nothing."""

from pathlib import Path

import pytest

from pytest_llmperf.baseline.profiles import shipped
from pytest_llmperf.commands.init import config_text, write_project
from pytest_llmperf.config.options import OPTIONS


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_an_empty_folder_gets_tests_baselines_and_configuration(tmp_path: Path) -> None:
    written = write_project(tmp_path / "new")
    assert names(tmp_path / "new") == [
        ".gitignore",
        "baselines/README.md",
        "perf_tests/test_decode.py",
        "perf_tests/test_matrix.py",
        "perf_tests/test_prefill.py",
        "pytest.ini",
    ]
    assert len(written.created) == 6
    assert not written.kept
    test = (tmp_path / "new" / "perf_tests" / "test_decode.py").read_bytes()
    assert test == (shipped("perf_tests") / "test_decode.py").read_bytes()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "perf_tests" / "test_decode.py"
    mine.parent.mkdir()
    mine.write_text("mine\n")
    written = write_project(tmp_path)
    assert written.kept == (mine,)
    assert mine.read_text() == "mine\n"
    assert write_project(tmp_path).created == ()


@pytest.mark.parametrize(
    ("there", "after"),
    [
        ("*.log", "*.log\nllmperf-report/\n"),
        ("*.log\n", "*.log\nllmperf-report/\n"),
        ("", "llmperf-report/\n"),
        ("/llmperf-report\n*.log\n", None),
    ],
)
def test_git_ignores_the_reports_beside_what_it_ignored(
    there: str, after: str | None, tmp_path: Path
) -> None:
    ignore = tmp_path / ".gitignore"
    ignore.write_text(there)
    written = write_project(tmp_path)
    assert written.changed == ((ignore,) if after else ())
    assert ignore.read_text() == (after or there)
    again = write_project(tmp_path)
    assert ignore in again.kept
    assert not again.changed


@pytest.mark.parametrize(
    ("name", "text", "hidden"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\n", True),
        ("pyproject.toml", "[tool.ruff]\n", False),
        ("tox.ini", "[pytest]\n", True),
        ("setup.cfg", "[tool:pytest]\n", True),
        ("pytest.toml", "", True),
    ],
)
def test_a_configuration_of_their_own_stays_in_force(
    name: str, text: str, hidden: bool, tmp_path: Path
) -> None:
    """A new pytest.ini would take its place, so only an example is written."""
    (tmp_path / name).write_text(text)
    write_project(tmp_path)
    assert (tmp_path / "pytest.ini").exists() != hidden
    assert (tmp_path / "llmperf.ini.example").exists() == hidden


def test_every_ini_key_stands_in_the_configuration_commented_out() -> None:
    """What pytest-asyncio wants is set."""
    lines = config_text().splitlines()
    stated = [line for line in lines if line and not line.startswith("# ")]
    assert stated == ["[pytest]", "asyncio_default_fixture_loop_scope = function"]
    for option in OPTIONS:
        assert any(line.startswith(f"# {option.key} = ") for line in lines) == option.ini
