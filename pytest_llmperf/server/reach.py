"""To a server that answers: one that runs, one that this run starts, or the simulator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.http import list_secrets
from pytest_llmperf.client.isolation import run_apart
from pytest_llmperf.config.options import Values
from pytest_llmperf.config.resolve import read_connection
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.settings import Connection, Settings
from pytest_llmperf.server.connect import Connected, connect
from pytest_llmperf.server.host import read_cpu
from pytest_llmperf.server.lock import ServerLock
from pytest_llmperf.server.serve import READY_S, ServerProcess, place
from pytest_llmperf.server.starter import CommandStarter, SimStarter, Starter
from pytest_llmperf.sim import is_spec


@dataclass(frozen=True)
class Reached:
    """A server that can be measured."""

    url: str
    """As the user wrote it, or where the started server listens."""
    connection: Connection
    api: ServerApi
    connected: Connected
    process: ServerProcess | None = None
    start_again: Callable[[int], Coroutine[Any, Any, Reached]] | None = None
    """Ends this server and reaches its start of that number; None where it is not ours."""

    @property
    def facts(self) -> dict[str, str]:
        """What this run knows of a server that it started itself."""
        if self.process is None:
            return {}
        return {"launch_command": self.process.command, "server_log": str(self.process.log)}

    @property
    def host(self) -> dict[str, str]:
        """The machine without its GPUs, where it is this one for certain: an address on this host
        may be a tunnel to another, a process of ours is not."""
        if self.process is None or self.connected.info.simulated:
            return {}
        return {"cpu": read_cpu()}


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
        number: of the run; each start of a simulated server draws its own noise.
        closers: gets what ends with the run.
        say: told what is being waited for.
        other: this is the server to compare with, which ``--llm-metrics-url`` is not about.

    Raises:
        ConfigError: for anything that must be mended before.
        ServerUnusable: the server cannot be reached, died, or is no OpenAI server.
    """
    starter: Starter | None = None
    wait_s = settings.wait_s
    if command is not None:
        if url is not None and is_spec(url):
            raise ConfigError("--llm-serve starts the server: the simulator needs no command")
        command, url = place(command.replace("{run}", str(number)), url)
        secrets = list_secrets(read_connection(values, url))
        starter = CommandStarter(command, url, log, secrets, say)
        wait_s = READY_S if wait_s is None else wait_s
    assert url is not None
    if is_spec(url):
        profiles = settings.baselines_dir
        starter = SimStarter(url, settings.hardware, profiles, number, settings.runs)
    else:
        stem = "against" if other and starter is None else "url"
        closers.callback(ServerLock(read_connection(values, url, stem).url).release)
    if starter is not None:
        closers.callback(starter.close)

    async def reach_start(start: int) -> Reached:
        address, process = url, None
        if starter is not None:
            starter.close()
            await asyncio.sleep(0)  # where Ctrl-C takes effect: ending a server takes its time
            address, process = starter.start(start), starter.process
        connection = read_connection(values, address, "against" if other else "url")
        if other:
            connection = replace(connection, metrics_url=None)
        api = ServerApi(connection)
        awaited = connect(
            api,
            model=settings.model,
            engine=settings.engine,
            wait_s=wait_s,
            kv_tokens=settings.kv_tokens,
            run_info=settings.run_info,
            say=say,
        )
        connected = await (awaited if process is None else process.while_alive(awaited))
        again = reach_start if starter is not None else None
        return Reached(url, connection, api, connected, process, again)

    return asyncio.run(run_apart(lambda: reach_start(1)))
