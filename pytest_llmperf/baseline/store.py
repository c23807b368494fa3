"""Writing a baseline file: whole or not at all, and never over somebody else's change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import uuid
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_llmperf.model.errors import ConfigError

_LOCK_S = 10.0


def write(path: Path, text: str, expected: str | None) -> None:
    """Replace the file by ``text``, atomically and durably.

    Args:
        expected: what the file held when it was read; None: there was no file.

    Raises:
        ConfigError: the file is not what it was, another process holds it, or the disk refuses.
            It is then as it was before.
    """
    path = path.resolve()
    try:
        with _lock(path):
            if _content(path) != (None if expected is None else expected.encode()):
                raise ConfigError(
                    f"{path}: not updated, it was changed since this run read it; look at the "
                    "change (git diff), then run with --update-baselines again"
                )
            _replace(path, text.encode())
    except Timeout:
        raise ConfigError(
            f"{path}: not updated, another process has been writing it for {_LOCK_S:.0f} s"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: not updated ({error.strerror})") from error


def _lock(path: Path) -> FileLock:
    # outside the repository: a lock file stays behind
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"llmperf-{name}.lock", timeout=_LOCK_S)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
