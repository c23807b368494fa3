"""Starting a simulated server in a process of its own, and ending it. Light to import."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

from pytest_llmperf.model.errors import ConfigError, LlmPerfError
from pytest_llmperf.sim.parameters import parse_spec

_STOP_S = 5.0


class SimProcess:
    """A running simulated server; a context manager. It ends with this process at the latest."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, profile: str) -> None:
        self._process = process
        self.url = url
        """Root of its API, without ``/v1``."""
        self.profile = profile
        """The hardware profile it simulates."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """End it; what it writes about the truth is complete afterwards. Idempotent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> SimProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start(
    spec: str, *, hardware: str | None = None, baselines: Path = Path("baselines")
) -> SimProcess:
    """Start a simulated server on a free port of the loopback interface, and wait until it answers.

    Args:
        spec: ``sim``, ``sim:<profile>``, ``sim:<profile>?speed=0.9&…``; see `parameters`.
        hardware: the profile of a spec that names none.
        baselines: where the user's profiles are; the shipped ones are found anyway.

    Raises:
        ConfigError: a bad spec, or a profile that is not there or cannot be simulated.
        LlmPerfError: it did not start for another reason; with its last words.
    """
    parse_spec(spec)
    order = {"spec": spec, "hardware": hardware, "baselines": str(baselines.absolute())}
    with tempfile.TemporaryFile() as errors:
        # the spec goes through the pipe: it may hold a key, which a command line would show
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest_llmperf.sim", "child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            # interrupted while it starts
            process.kill()
            process.communicate()
            raise
        if not line:
            process.wait()
            _explain(process, errors)
    answer = json.loads(line)
    return SimProcess(process, answer["url"], answer["profile"])


def _explain(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    errors.seek(0)
    words = errors.read().decode("utf-8", "replace").strip()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.returncode == 4:
        raise ConfigError(words)
    raise LlmPerfError(f"the simulator did not start (exit code {process.returncode}):\n{words}")
