"""Load processes that stay up from cell to cell: execnet gateways, on this host or on others."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, NamedTuple, TypeVar

from pytest_llmperf import __version__
from pytest_llmperf.model.errors import ConfigError

START_S = 60.0
"""Seconds a process may take to come up."""
EXIT_S = 2.0
HERE = "this host"
_SSH = "-o BatchMode=yes -o ConnectTimeout=20"
"""A measurement cannot answer questions: ssh fails instead of asking."""

# Ctrl-C reaches every process of the terminal; ours end when their parent says so, or ends
_HELLO = """
import os, platform, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    from pytest_llmperf import __version__
    import pytest_llmperf.measure.loadworker
    problem = ""
except Exception as error:
    __version__, problem = "", "%s: %s" % (type(error).__name__, error)
channel.send((__version__, problem, os.getpid(), platform.node(), sys.executable or "python"))
"""
_SERVE = "from pytest_llmperf.measure.loadworker import serve; serve(channel)"

T = TypeVar("T")


class Place(NamedTuple):
    """Where a load process runs, as an execnet specification says it."""

    spec: str

    @property
    def host(self) -> str:
        """The host's name for people."""
        parts = dict(part.partition("=")[::2] for part in self.spec.split("//"))
        for key in ("ssh", "vagrant_ssh", "socket"):
            if words := parts.get(key, "").split():
                return words[-1]
        return HERE

    @property
    def local(self) -> bool:
        """Whether it shares this host's clock."""
        return self.host == HERE


class LoadProcess:
    """One process; made, used and ended by the pool. Its calls block."""

    def __init__(self, spec: str) -> None:
        self.place = Place(spec)
        self.pid = 0
        self.node = ""
        self._group: Any = None
        self._gateway: Any = None

    def start(self) -> None:
        """
        Raises:
            ConfigError: it does not come up, or has no package like ours.
        """
        import execnet

        spec, host = execnet.XSpec(self.place.spec), self.place.host
        if spec.ssh:
            spec.ssh = f"{_SSH} {spec.ssh}"
        # a load takes the main thread, which alone may set how signals are met
        spec.execmodel = spec.execmodel or "main_thread_only"
        self._group = execnet.Group()
        try:
            self._gateway = self._group.makegateway(spec)
            channel = self._gateway.remote_exec(_HELLO)
            version, problem, self.pid, self.node, python = channel.receive(START_S)
        except (EOFError, OSError, execnet.HostNotFound, execnet.TimeoutError) as error:
            self.stop()
            _forget(error)
            raise ConfigError(_unreachable(self.place, error)) from None
        if problem or version != __version__:
            self.stop()
            has = f"has pytest-llmperf {version}" if version else f"cannot load it ({problem})"
            raise ConfigError(
                f"--llm-load: {host} needs pytest-llmperf {__version__}; {python} there {has}. "
                f"On {host} run: {python} -m pip install 'pytest-llmperf[fast]=={__version__}'"
            )

    def call(self) -> Any:
        """The channel of a new load; the one before is over."""
        return self._gateway.remote_exec(_SERVE)

    def stop(self) -> None:
        """End it, by force if it does not go. Idempotent."""
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(OSError):
                group.terminate(EXIT_S)


class LoadPool:
    """What was started once is used again. Calls block, and may come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[LoadProcess] = []
        self._all: set[LoadProcess] = set()
        self._closed = False

    def take(self, specs: Sequence[str]) -> list[LoadProcess]:
        """A process for each specification, in order; those that are missing are started at once.

        Raises:
            ConfigError: one does not come up.
        """
        taken: list[LoadProcess | Future[LoadProcess]] = []
        for spec in specs:
            taken.append(self._find(spec) or _in_thread(lambda spec=spec: self._start(spec)))  # type: ignore[misc]
        found: list[LoadProcess] = []
        failures: list[ConfigError] = []
        for spec, one in zip(specs, taken, strict=True):
            try:
                found.append(one if isinstance(one, LoadProcess) else one.result(START_S))
            except ConfigError as error:
                failures.append(error)
            except Late:
                text = f"--llm-load: {Place(spec).host} did not come up within {START_S:g} s"
                failures.append(ConfigError(text))
        if failures:
            for process in found:
                self.give_back(process)
            raise failures[0]
        return found

    def check(self, specs: Sequence[str]) -> None:
        """Start what is missing of these, and keep it for the cells.

        Raises:
            ConfigError: one does not come up.
        """
        for process in self.take(specs):
            self.give_back(process)

    def give_back(self, process: LoadProcess) -> None:
        """It has come to the end of its load, and may take another."""
        with self._lock:
            if not self._closed:
                self._idle.append(process)

    def discard(self, process: LoadProcess) -> None:
        """End one that hangs, has died, or is in the midst of a load."""
        process.stop()
        with self._lock:
            self._all.discard(process)

    def close(self) -> None:
        """End all. Idempotent."""
        with self._lock:
            self._closed = True
            processes, self._all = self._all, set()
            self._idle = []
        for stopping in [_in_thread(process.stop) for process in processes]:
            with contextlib.suppress(Late):
                stopping.result(2 * EXIT_S)

    def _find(self, spec: str) -> LoadProcess | None:
        with self._lock:
            for process in self._idle:
                if process.place.spec == spec:
                    self._idle.remove(process)
                    return process
        return None

    def _start(self, spec: str) -> LoadProcess:
        process = LoadProcess(spec)
        process.start()
        with self._lock:
            if not self._closed:
                self._all.add(process)
                return process
        process.stop()
        raise ConfigError("the session has ended")


def _unreachable(place: Place, error: Exception) -> str:
    if place.local:
        return f"a load process does not start on {HERE}: {type(error).__name__}"
    how = "vagrant ssh" if place.spec.startswith("vagrant") else "ssh"
    return (
        f"--llm-load: {place.host} does not answer as a Python by {place.spec!r}; "
        f"try: {how} {place.host} python3 -V (without a password: keys, or an agent)"
    )


def _forget(error: BaseException | None) -> None:
    """Close the pipes of a process that did not come up: execnet leaves them to its frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__context__


def on_this_host(process: LoadProcess) -> bool:
    """Whether a process has this host's loopback address."""
    return process.place.local or process.node == platform.node()


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """In a thread that keeps nobody from ending."""
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name=f"llmperf-load-{os.getpid()}", daemon=True).start()
    return future
