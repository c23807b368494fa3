"""What starts the server of a run, and starts it again: its command, or the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pytest_llmperf.server.serve import ServerProcess
from pytest_llmperf.sim import SimProcess, with_start
from pytest_llmperf.sim import start as start_sim


class Starter(Protocol):
    """One server at a time; the next start begins where the one before was closed."""

    @property
    def process(self) -> ServerProcess | None:
        """The server that was started last, where it has a command of its own."""
        ...

    def start(self, number: int) -> str:
        """Start the server; returns its address, at which it need not be ready yet.

        Args:
            number: of the start within the run, from 1.

        Raises:
            LlmPerfError: it cannot be started, and why.
        """
        ...

    def close(self) -> None:
        """End the server that was started last. Idempotent."""
        ...


class CommandStarter:
    """Runs a command; every start has a log of its own."""

    def __init__(
        self, command: str, url: str, log: Path, secrets: Sequence[str], say: Callable[[str], None]
    ) -> None:
        """
        Args:
            command: ``{start}`` in it stands for the number of the start.
            url: where it will listen, at every start.
            log: where the output of the first start goes.
            secrets: what is not repeated of what it prints.
            say: told that the server is started.
        """
        self.process: ServerProcess | None = None
        self._command = command
        self._url = url
        self._log = log
        self._secrets = secrets
        self._say = say

    def start(self, number: int) -> str:
        log = self._log
        if number > 1:
            log = log.with_stem(f"{log.stem}-start{number}")
        self._say(f"llmperf: starting the server, its output goes to {log}")
        command = self._command.replace("{start}", str(number))
        self.process = ServerProcess(command, self._url, log, self._secrets)
        return self._url

    def close(self) -> None:
        if self.process is not None:
            self.process.close()


class SimStarter:
    """Starts the simulator; every start draws its own noise between starts."""

    process: None = None

    def __init__(self, spec: str, hardware: str | None, baselines: Path, run: int, runs: int):
        """
        Args:
            spec: what is simulated.
            hardware: the profile that a spec without one plays.
            baselines: where the user's profiles are.
            run: number of the run within the session, of ``runs``.
        """
        self._spec = spec
        self._hardware = hardware
        self._baselines = baselines
        self._run = run
        self._runs = runs
        self._handle: SimProcess | None = None

    def start(self, number: int) -> str:
        # no two starts of a session draw alike
        start = self._run + self._runs * (number - 1)
        self._handle = start_sim(
            with_start(self._spec, start), hardware=self._hardware, baselines=self._baselines
        )
        return self._handle.url

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
