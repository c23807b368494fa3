"""Pages made from code are in step with it, and the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


def test_generated_pages_are_in_step() -> None:
    """Else: run ``python tools/reference.py`` and commit what it writes."""
    done = subprocess.run(
        [sys.executable, "tools/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"behind the code: {done.stdout}{done.stderr}"


def test_every_warning_is_explained() -> None:
    """A reader who meets the code of a warning in a report finds it among the metrics."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    sources = (ROOT / "pytest_llmperf").rglob("*.py")
    codes = {code for path in sources for code in re.findall(r'code="([\w-]+)"', path.read_text())}
    assert len(codes) > 15
    assert not [code for code in codes if f"`{code}`" not in page]


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors lead somewhere, and the table of contents names pages that exist."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").is_file()
