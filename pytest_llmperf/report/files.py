"""Write report files so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step, creating its folder if need be.

    Whatever happens, the path holds either the old content or the new, even after a power cut. A
    link stays one, and what is no file, such as ``/dev/stdout``, is written to, never replaced.

    Raises:
        OSError: when the folder cannot be written, or the path is a folder; the old content stays,
            and no temporary file.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
