"""Another network: a namespace of the kernel's, or a relay that delays; for the tests of hosts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

HERE, THERE = "10.203.77.1", "10.203.77.2"


@dataclass(frozen=True)
class Namespace:
    """A network namespace, and the addresses of both ends of the cable to it."""

    name: str
    here: str = HERE
    there: str = THERE

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command starts with that runs there."""
        return ("ip", "netns", "exec", self.name)


class NoNetwork(Exception):
    """This machine does not allow it, and why."""


@contextmanager
def namespace(delay_ms: float = 0.0) -> Iterator[Namespace]:
    """A namespace with a cable to ours, on which what goes there is delayed, and what comes back
    is not.

    Raises:
        NoNetwork: not root, no ``ip``, or a kernel without what it takes.
    """
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise NoNetwork("network namespaces need root, ip and tc (apt-get install iproute2)")
    name = f"llmperf{os.getpid()}"
    near, far = f"lp{os.getpid()}a", f"lp{os.getpid()}b"
    commands = [
        f"ip netns add {name}",
        f"ip link add {near} type veth peer name {far} netns {name}",
        f"ip addr add {HERE}/30 dev {near}",
        f"ip link set {near} up",
        f"ip -n {name} addr add {THERE}/30 dev {far}",
        f"ip -n {name} link set {far} up",
        f"ip -n {name} link set lo up",
    ]
    if delay_ms:
        commands.append(f"tc qdisc add dev {near} root netem delay {delay_ms}ms")
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                raise NoNetwork(f"{command}: {done.stderr.strip()}")
        yield Namespace(name)
    finally:
        for command in (f"ip link del {near}", f"ip netns del {name}"):
            subprocess.run(command.split(), capture_output=True)


class Relay:
    """``with Relay(port, there_s, back_s) as relay: ... relay.port``: TCP, delayed each way."""

    def __init__(self, port: int, there_s: float, back_s: float) -> None:
        self._to = port
        self._delays = there_s, back_s
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def __enter__(self) -> Relay:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, far_writer]
        there, back = self._delays
        await asyncio.gather(
            self._pass_on(reader, far_writer, there), self._pass_on(far_reader, writer, back)
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self._loop.call_later(delay_s, writer.write, data)
        self._loop.call_later(delay_s, writer.close)
