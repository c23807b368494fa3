"""Every command that README and docs show is run here, or at least understood."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.docs import small
from tests.docs.blocks import PAGES, ROOT, Block, blocks, commands, scripts

IDS = [str(page.relative_to(ROOT)) for page in PAGES]
RUN_BY_CI = "ci: test"
"""Marks the block that runs this very suite."""


def _parses(words: list[str]) -> list[str] | None:
    """The command whose options these are, or None if it is not ours."""
    program = Path(words[0]).name
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        return [sys.executable, *words[1 : 4 if words[3:] and words[3].isalpha() else 3]]
    if program == "pytest":
        return [sys.executable, "-m", "pytest"]
    if program == "llmperf":
        subcommand = words[1:2] if words[1] != "sim" else words[1:3]
        return [sys.executable, "-m", "pytest_llmperf.commands.main", *subcommand]
    return None


@cache
def _known(*command: str) -> frozenset[str]:
    """The options that the help of a command names."""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return frozenset(re.findall(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*", done.stdout))


def _unknown_options(words: list[str]) -> list[str]:
    command = _parses(words)
    if command is None or not ("pytest_llmperf" in " ".join(command) or command[-1] == "pytest"):
        return []
    given = [w.partition("=")[0] for w in words[1:] if re.match(r"--?[a-z]", w) and w != "-m"]
    return [option for option in given if option not in _known(*command)]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_options_exist(page: Path) -> None:
    """Also of the commands that need a GPU host or a network, and of those in workflow files."""
    for block in blocks(page):
        for script in scripts(block):
            for words in commands(script):
                assert not _unknown_options(words), " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_blocks_are_well_formed(page: Path) -> None:
    """Python compiles, YAML loads, and every block says what it is."""
    for block in blocks(page):
        assert block.language, f"a block without a language: {block.text[:60]}"
        if block.language == "python":
            compile(block.text, str(page), "exec")
        elif block.language == "yaml":
            assert yaml.safe_load(block.text) is not None


def _runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language == "sh" and b.mark != RUN_BY_CI]


def _without_installing(script: str) -> str:
    """The environment that runs this test has everything: what would make another is left out."""
    script = re.sub(r"python3 -m venv \S+ && \S+pip install [^&\n]*(&& )?", "", script)
    return script.replace(".venv/bin/", "")


def _prepare(project: Path, bin_folder: Path) -> dict[str, str]:
    """A project with the tests and profiles that are shipped; returns its environment."""
    for folder in ("perf_tests", "baselines"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, project / folder, ignore=ignore)
    bin_folder.mkdir()
    stand_ins = {"pytest": f"{sys.executable} {small.__file__}"}
    stand_ins["llmperf"] = f"{sys.executable} -m pytest_llmperf.commands.main"
    stand_ins["python"] = sys.executable
    for name, command in stand_ins.items():
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)
    unset = ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "LLMPERF_API_KEY", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {
        **kept,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if _runnable(p)], ids=lambda p: p.stem)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page, in order, in one project: files are written, shell blocks are run and
    end as the text says. Runs are small (see ``small.py``)."""
    project = tmp_path / "project"
    environment = _prepare(project, tmp_path / "bin")
    for block in blocks(page):
        if block.file:
            (project / block.file).parent.mkdir(parents=True, exist_ok=True)
            (project / block.file).write_text(block.text)
        if block.language != "sh" or block.mark == RUN_BY_CI:
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _without_installing(block.text)],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == block.exit_code, f"{block.text}\n{done.stdout}\n{done.stderr}"
