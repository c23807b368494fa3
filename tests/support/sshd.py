"""An ssh server on the loopback address, with keys and a port of its own."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 10.0


def why_missing() -> str:
    """What is missing for an ssh server of our own; empty if nothing is."""
    tools = [name for name in ("sshd", "ssh", "ssh-keygen") if not find(name)]
    return f"{', '.join(tools)} missing: apt-get install openssh-server" if tools else ""


def find(name: str) -> str | None:
    """A program, also where only root has it on the path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


@dataclass(frozen=True)
class Sshd:
    """A running server."""

    pid: int
    host: str
    port: int
    config: Path
    """For ``ssh -F``: how to reach it, and with which key."""

    def spec(self, python: str, port: int | None = None) -> str:
        """execnet's specification of a Python there; by another port if it is behind a relay."""
        way = f"-p {port} " if port else ""
        return f"ssh={way}{self.host}//ssh_config={self.config}//python={python}"


@contextmanager
def running_sshd(
    name: str = "loadhost", address: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[Sshd]:
    """A server that is stopped at the end, by its process id.

    Args:
        name: what the client calls the host.
        prefix: a command that the server is run by, such as one that enters a network namespace.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for key in ("host", "user"):
            command = [find("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
            subprocess.run(command, check=True)
        keys = folder / "authorized_keys"
        keys.write_text((folder / "user.pub").read_text())
        keys.chmod(0o600)
        port = 22022 if prefix else free_port()
        server = folder / "sshd_config"
        server.write_text(
            f"ListenAddress {address}:{port}\nHostKey {folder / 'host'}\nPidFile none\n"
            f"AuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nMaxStartups 100\n"
        )
        client = folder / "ssh_config"
        client.write_text(
            f"Host {name}\n  HostName {address}\n  Port {port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder / 'known_hosts'}\n  StrictHostKeyChecking no\n"
            "  LogLevel ERROR\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, run by root, drops its privileges
        command = [*prefix, find("sshd") or "sshd", "-D", "-e", "-f", str(server)]
        log = folder / "log"
        with log.open("w") as stream, subprocess.Popen(command, stderr=stream) as process:
            try:
                deadline = time.monotonic() + START_S
                while "Server listening" not in log.read_text():
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.02)
                yield Sshd(process.pid, name, port, client)
            finally:
                process.terminate()


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
