"""``-m pytest_llmperf.server.guard GRACE_S COMMAND``: ends its process group with stdin.

The pipe on stdin is held by the process that wants the command. However that process ends, killed
included, the pipe closes and nothing is left running. Standard library only: it starts at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_POLL_S = 0.1


def main(grace_s: float, command: list[str]) -> int:
    """Run ``command`` until it ends or stdin does; returns its exit code as a shell does.

    Args:
        grace_s: from SIGTERM to SIGKILL.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.close(0))
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while process.poll() is None and _wanted():
        pass
    _end(process, grace_s)
    code = process.returncode
    return 128 - code if code < 0 else code


def _wanted() -> bool:
    """Whether stdin is still open, after a moment."""
    try:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        return not readable or bool(os.read(0, 4096))
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End the group: a command that ended by itself may have left children behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if process.poll() is not None and not _any_left(process.pid):
                return
            time.sleep(_POLL_S / 2)


def _any_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
