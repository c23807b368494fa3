"""Finding profiles, and reading what one declares without heavy imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.baseline.profiles import (
    available_profiles,
    find_profile,
    profile_path,
    read_declared,
    shipped,
)
from pytest_llmperf.model.errors import ConfigError
from tests.baseline.samples import SMALL


def test_the_users_profile_comes_before_the_shipped_one(tmp_path: Path) -> None:
    assert find_profile("h200nvl_x2", tmp_path) == shipped("baselines") / "h200nvl_x2.yaml"
    own = tmp_path / "h200nvl_x2.yaml"
    own.write_text(SMALL)
    assert find_profile("h200nvl_x2", tmp_path) == own


def test_an_unknown_profile_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SMALL)
    assert available_profiles(tmp_path) == ["h200nvl_x2", "mine", "rtxpro6k_x4"]
    with pytest.raises(ConfigError, match=r"h200nvl_x2, mine, rtxpro6k_x4.*--update-baselines"):
        find_profile("mime", tmp_path)
    with pytest.raises(ConfigError, match=r"Did you mean rtxpro6k_x4\? There are: h200nvl_x2, "):
        find_profile("rtxpro6000_x4", tmp_path)


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "a\\b", ".", "..", "a b", "x\n", "~"])
def test_a_name_cannot_leave_the_directory(name: str, tmp_path: Path) -> None:
    for call in (find_profile, profile_path):
        with pytest.raises(ConfigError, match="a profile is named by"):
            call(name, tmp_path)


def test_declared_grid_of_a_shipped_profile() -> None:
    declared = read_declared(shipped("baselines") / "h200nvl_x2.yaml")
    contexts = ["8K", "16K", "32K", "64K", "128K", "251K"]
    assert declared["contexts"] == contexts
    assert [int(n) for n in declared["concurrency"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert declared["prefill_contexts"] == [*contexts, "256K"]


def test_what_is_unknown_is_not_declared() -> None:
    """Only what the profile says; the duration is left to the run."""
    declared = read_declared(shipped("baselines") / "rtxpro6k_x4.yaml")
    assert set(declared) == {
        "contexts", "concurrency", "prefill_contexts", "max_tokens", "prompts", "capacity",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("contexts: [8K, 1000]", "contexts: 8K", r":4: settings\.contexts: contexts must be"),
        ("contexts: [8K, 1000]", "contexts: [8Q]", r":4: settings\.contexts: '8Q' is not a token"),
        ("concurrency: [1, 16]", "concurrency: [1.5]", r"settings\.concurrency: '1\.5'"),
        ("settings:", "setings:", r":4: setings: unknown field; did you mean settings\?"),
        ("settings:", "tolerance:", ":1: settings with contexts and concurrency are missing"),
        ("concurrency:", "concurency:", r":4: settings\.concurency: unknown.* mean concurrency\?"),
        (", prefill_contexts: [8K]", "", ":4: settings: prefill_contexts must be a list"),
        ("schema: 1", "schema: 7", "newer version"),
    ],
)  # fmt: skip
def test_a_grid_that_cannot_be_read(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SMALL.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_declared(path)


def test_reading_a_grid_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_llmperf.baseline.profiles import read_declared;"
        "print([m for m in ('pydantic', 'numpy', 'httpx', 'pytest') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
