"""A command whose reader goes away, as in ``llmperf report a.json | head -1``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def end_with_reader(command: Callable[[], int]) -> int:
    """Run a command and write out what it printed; 0 if nobody reads that any more."""
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:  # as after ">&-"
                sys.stdout.flush()
    except BrokenPipeError:
        # or else the interpreter fails at its last flush
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                os.dup2(nowhere, stream.fileno())
        return 0
