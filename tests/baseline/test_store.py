"""Writing a file: whole or not at all, never over somebody else's change."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_llmperf.baseline import store
from pytest_llmperf.model.errors import ConfigError


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_new_file_and_its_folder_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.yaml"
    store.write(path, "a\n", None)
    assert path.read_text() == "a\n"
    assert names(path.parent) == ["x.yaml"]


def test_a_file_changed_since_it_was_read_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("theirs\n")
    for expected in (None, "before\n"):
        with pytest.raises(ConfigError, match="changed since this run read it"):
            store.write(path, "ours\n", expected)
    path.unlink()
    with pytest.raises(ConfigError, match="changed since"):
        store.write(path, "ours\n", "before\n")
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failure_at_any_step_leaves_the_old_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("old\n")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(ConfigError, match=r"not updated \(No space left on device"):
        store.write(path, "new\n", "old\n")
    assert path.read_text() == "old\n"
    assert names(tmp_path) == ["x.yaml"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("old\n")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(path, "new\n", "old\n")
    assert names(tmp_path) == ["x.yaml"]
    assert path.read_text() == "old\n"


@pytest.mark.skipif(os.name != "posix", reason="modes and links as POSIX has them")
def test_mode_and_link_of_the_file_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "x.yaml", tmp_path / "link.yaml"
    path.write_text("old\n")
    path.chmod(0o640)
    link.symlink_to(path)
    store.write(link, "new\n", "old\n")
    assert link.is_symlink()
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_of_writers_at_once_one_wins_and_no_reader_sees_half(tmp_path: Path) -> None:
    """Several processes start from the same text; the others are told, not overwritten."""
    path = tmp_path / "x.yaml"
    path.write_text("old\n")
    code = (
        "import sys; from pathlib import Path; from pytest_llmperf.baseline.store import write;"
        "write(Path(sys.argv[1]), sys.argv[2] * 200_000, 'old\\n')"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), letter], stderr=subprocess.DEVNULL)
        for letter in "abc"
    ]
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=watch)
    reader.start()
    codes = [writer.wait(60) for writer in writers]
    stop.set()
    reader.join()
    assert sorted(codes) == [0, 1, 1]
    winner = "abc"[codes.index(0)] * 200_000
    assert path.read_text() == winner
    assert seen <= {"old\n", winner}


def test_a_held_lock_is_an_error_not_a_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    monkeypatch.setattr(store, "_LOCK_S", 0.05)
    with store._lock(path.resolve()), pytest.raises(ConfigError, match="another process"):
        store.write(path, "a\n", None)
    assert not path.exists()
