"""Runs a command in a pseudo-terminal and keeps what its user would see."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

ROWS, COLUMNS = 60, 100


@dataclass(frozen=True)
class Seen:
    """What came out of a terminal."""

    code: int
    raw: str
    frames: list[str]
    """The screen after each read."""

    @property
    def screen(self) -> str:
        """The screen in the end."""
        return self.frames[-1]


def run_in_terminal(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Seen:
    """Run it to its end, on a terminal of 60 rows and 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    raw, frames = b"", []
    with subprocess.Popen(
        command, cwd=cwd, env=dict(env), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the terminal's last user is gone
                break
            raw += data
            stream.feed(data)
            frames.append("\n".join(line.rstrip() for line in screen.display).rstrip())
    os.close(ours)
    return Seen(process.returncode, raw.decode(), frames)
