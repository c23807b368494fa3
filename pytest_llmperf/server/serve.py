"""``--llm-serve``: a server that this run starts, watches and ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.model.redact import redact
from pytest_llmperf.server import guard

T = TypeVar("T")

GRACE_S = 20.0
"""From SIGTERM to SIGKILL: an engine frees its GPUs in this time."""
READY_S = 1800.0
"""A large model is loaded and compiled in this time, unless ``--llm-wait`` says otherwise."""
PORTS = {"vllm": 8000, "trtllm-serve": 8000, "sglang": 30000, "llama-server": 8080}
"""Where a server listens whose command does not say."""
_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 15
_LINE_CHARS = 600
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_POLL_S = 0.1


def place(command: str, url: str | None) -> tuple[str, str]:
    """The command with ``{port}`` filled in, and the address it will listen at.

    Args:
        url: ``--llm-url``, where that says it; else the command's own ``--port`` does.

    Raises:
        ConfigError: when nothing says where the server will listen.
    """
    if url is not None:
        port = urlsplit(url).port
        return command.replace("{port}", str(port or 80)), url
    if "{port}" in command:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            number = free.getsockname()[1]
        return command.replace("{port}", str(number)), f"http://127.0.0.1:{number}"
    words = split(command)
    said = re.search(r"\s--port[=\s]\s*(\d+)", command)
    known = next((PORTS[name] for word in words if (name := Path(word).name) in PORTS), None)
    if said is None and known is None:
        raise ConfigError(
            f"--llm-serve: where will {words[0]!r} listen? Write --port {{port}} into the command "
            "(a free one is filled in), or name the address with --llm-url"
        )
    return command, f"http://127.0.0.1:{said[1] if said else known}"


def split(command: str) -> list[str]:
    """The words of a command; assignments before it (``VAR=1 vllm …``) are kept, as in a shell.

    Raises:
        ConfigError: it is empty, its quotes are not closed, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--llm-serve: {error}") from None
    program = next((word for word in words if not re.match(r"\w+=", word)), None)
    if program is None:
        raise ConfigError("--llm-serve: the command is empty")
    if shutil.which(program) is None:
        raise ConfigError(f"--llm-serve: there is no program {program!r} to start")
    return words if words[0] == program else ["env", *words]


class ServerProcess:
    """A started server. Whatever happens to this process, the server's whole group ends."""

    def __init__(
        self,
        command: str,
        url: str,
        log: Path,
        secrets: Sequence[str] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        """Start it; what it prints goes into ``log``.

        Args:
            secrets: what is not repeated of what it prints.
            grace_s: how long it may take to end.

        Raises:
            ConfigError: the command cannot be started, or something else listens at ``url``.
        """
        words = split(command)
        _refuse_taken(url)
        self.command = redact(command)
        self.url = url
        self.log = log
        self._secrets = secrets
        self._grace_s = grace_s
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            # a session of its own: Ctrl-C is for pytest, which then ends the server in order
            self._guard = subprocess.Popen(
                [sys.executable, "-m", guard.__name__, str(grace_s), *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._guard.poll()

    def last_words(self) -> str:
        """The end of its log, free of secrets and of what would steer a terminal."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            said = _COLOUR.sub("", file.read().decode("utf-8", "replace"))
        shown = (
            "".join(c if c.isprintable() else " " for c in line[:_LINE_CHARS])
            for line in redact(said, self._secrets).splitlines()[-_TAIL_LINES:]
        )
        return "\n".join(f"  {line}" for line in shown)

    def explain(self) -> str:
        """How it ended, and what it said last; empty while it runs."""
        code = self.exit_code
        if code is None:
            return ""
        return f"the server ended with exit code {code}; the last of {self.log}:\n" + (
            self.last_words() or "  (nothing)"
        )

    async def while_alive(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Await something that makes sense only while the server lives.

        Raises:
            ServerUnusable: it died meanwhile, with its last words.
        """
        task = asyncio.ensure_future(awaited)
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_S)
            if not task.done() and self.exit_code is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                raise ServerUnusable(self.explain())
        try:
            return task.result()
        except ServerUnusable as error:
            raise ServerUnusable(
                f"{error}\n{self.explain() or 'its log: ' + str(self.log)}"
            ) from None

    def close(self) -> None:
        """End it and everything it started. Idempotent."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(2 * self._grace_s + 5)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


def _refuse_taken(url: str) -> None:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1).close()
    except OSError:
        return
    raise ConfigError(
        f"--llm-serve: something listens at {url} already, and would be measured in place of the "
        "server to start; stop it, or choose another port"
    )
