"""To a server that answers: one that runs, one that this run starts, or the simulator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.http import list_secrets
from pytest_llmperf.client.isolation import run_apart
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.options import Values
from pytest_llmperf.resolve import read_connection
from pytest_llmperf.server.connect import Connected, connect
from pytest_llmperf.server.lock import ServerLock
from pytest_llmperf.server.serve import READY_S, ServerProcess, place
from pytest_llmperf.settings import Connection, Settings
from pytest_llmperf.sim.parameters import is_spec, with_seed
from pytest_llmperf.sim.process import start


@dataclass(frozen=True)
class Reached:
    """A server that can be measured."""

    url: str
    """As the user wrote it, or where the started server listens."""
    connection: Connection
    api: ServerApi
    connected: Connected
    process: ServerProcess | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What this run knows of a server that it started itself."""
        if self.process is None:
            return {}
        return {"launch_command": self.process.command, "server_log": str(self.process.log)}


def reach(
    url: str | None,
    command: str | None,
    values: Values,
    settings: Settings,
    log: Path,
    number: int,
    closers: contextlib.ExitStack,
    say: Callable[[str], None],
    other: bool = False,
) -> Reached:
    """Start the server if asked to, lock it for this process, and wait until it is ready.

    Args:
        url: ``--llm-url`` or ``--llm-against``.
        command: what starts the server.
        log: where a started server's output goes.
        number: of the run; each run of a simulated server draws its own noise between runs.
        closers: gets what ends with the run.
        say: told what is being waited for.
        other: this is the server to compare with, which ``--llm-metrics-url`` is not about.

    Raises:
        ConfigError: for anything that must be mended before.
        ServerUnusable: the server cannot be reached, died, or is no OpenAI server.
    """
    process = None
    wait_s = settings.wait_s
    if command is not None:
        if url is not None and is_spec(url):
            raise ConfigError("--llm-serve starts the server: the simulator needs no command")
        command, url = place(command.replace("{run}", str(number)), url)
        connection = read_connection(values, url)
        closers.callback(ServerLock(connection.url).release)
        say(f"llmperf: starting the server, its output goes to {log}")
        process = ServerProcess(command, url, log, list_secrets(connection))
        closers.callback(process.close)
        wait_s = READY_S if wait_s is None else wait_s
    elif url is not None and is_spec(url):
        spec = with_seed(url, number - 1)
        handle = start(spec, hardware=settings.hardware, baselines=settings.baselines_dir)
        closers.callback(handle.close)
        connection = read_connection(values, handle.url)
    else:
        assert url is not None
        connection = read_connection(values, url, "against" if other else "url")
        closers.callback(ServerLock(connection.url).release)
    if other:
        connection = replace(connection, metrics_url=None)
    api = ServerApi(connection)

    async def connecting() -> Connected:
        awaited = connect(
            api,
            model=settings.model,
            engine=settings.engine,
            wait_s=wait_s,
            kv_tokens=settings.kv_tokens,
            run_info=settings.run_info,
            say=say,
        )
        return await (awaited if process is None else process.while_alive(awaited))

    return Reached(url, connection, api, asyncio.run(run_apart(connecting)), process)
