"""Wheel and sdist, as a user installs them: built, in an environment and a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PERF_TESTS = sorted(path.name for path in (ROOT / "perf_tests").glob("test_*.py"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("packaging"),
]


def _run(*command: str | Path, cwd: Path) -> str:
    """Run outside the checkout, without what this test run has in its environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_wheel_holds_what_is_no_module(wheel: Path) -> None:
    """Profiles, tests to copy, templates, grammar, schema, and the mark of a typed package."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        "py.typed",
        "measure/grammar.txt",
        "report/results.schema.json",
        "report/templates/run.html.j2",
        "report/templates/style.css",
        "report/templates/script.js",
        *(f"shipped/baselines/{path.name}" for path in (ROOT / "baselines").glob("*.yaml")),
        *(f"shipped/perf_tests/{name}" for name in PERF_TESTS),
    }
    assert {f"pytest_llmperf/{name}" for name in wanted} <= names
    own = {name for name in names if not name.startswith("pytest_llmperf/")}
    assert all(".dist-info/" in name for name in own), "nothing else is installed"


def test_sdist_can_be_tested(built: Path) -> None:
    """It has tests, docs and licence, and nothing that a run left behind."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_imports.py", "docs/tutorial.md", "LICENSE", "CHANGELOG.md"} <= names
    assert not {name for name in names if name.startswith(("llmperf-report", ".venv", "site/"))}


def test_installed_wheel_measures(wheel: Path, tmp_path: Path) -> None:
    """As a newcomer does it: install, ``llmperf init`` in an empty folder, measure."""
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    _run(programs / "pip", "install", "-q", wheel, cwd=tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    _run(programs / "llmperf", "init", cwd=project)
    assert sorted(p.name for p in (project / "perf_tests").iterdir()) == PERF_TESTS
    wide = ("total_tok_s", "itl_ms", "ttft_ms", "steps_s", "prefill_tok_s")
    shown = _run(
        programs / "pytest", "perf_tests", "--llm-url", "sim", "--hardware", "rtxpro6k_x4",
        "--llm-contexts", "8K", "--llm-concurrency", "1", "--llm-duration", "2",
        *(f"--llm-tolerance={metric}=0.5" for metric in wide),
        cwd=project,
    )  # fmt: skip
    assert "No regression in 2 measured cells" in shown
    made = sorted(p.name for p in (project / "llmperf-report").iterdir())
    assert made == ["report.html", "report.md", "results.json"]
