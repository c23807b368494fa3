"""Real gateways in front of a real server, for tests marked ``engine``.

``python -m tests.support.gateways`` installs them: those of the package registry in a virtual
environment each (1 GB in all) below ``$LLMPERF_ENGINES_DIR`` or ``.engines/``, nginx by apt-get.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("LLMPERF_ENGINES_DIR") or _REPOSITORY / ".engines") / "gateways"
READY_S = 120.0
KEY = "sk-behind-a-gateway"
"""What clients of a gateway that insists on a key send; the server behind it has none."""
_GUARDED = (sys.executable, "-m", "pytest_llmperf.server.guard", "2")
"""A gateway ends with the process that started it, however that ends."""


@dataclass(frozen=True)
class Gateway:
    """How one gateway is installed and started."""

    name: str
    requirement: str
    """Of the package registry; empty: a program of the system, by ``name``."""
    command: Callable[[Path, str, int], list[str]]
    """Folder for its files, server behind it, and port -> its arguments, the program first."""
    key: str | None = None

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def is_installed(self) -> bool:
        """Whether the pinned package, or the program of the system, is there."""
        if not self.requirement:
            return shutil.which(self.name) is not None
        return (self.folder / "done").exists()

    def install(self) -> None:
        """Install it, once.

        Raises:
            subprocess.CalledProcessError: pip or apt-get could not.
        """
        if self.is_installed:
            return
        if not self.requirement:
            subprocess.run(["apt-get", "update", "-qq"], check=True)
            subprocess.run(["apt-get", "install", "-y", "-qq", f"{self.name}-light"], check=True)
            return
        venv.create(self.folder / "venv", with_pip=True, clear=True)
        pip = [str(self.folder / "venv/bin/python"), "-m", "pip", "--quiet", "install"]
        subprocess.run([*pip, "--only-binary", ":all:", self.requirement], check=True)
        (self.folder / "done").touch()


def _litellm(files: Path, server: str, port: int) -> list[str]:
    config = files / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: smol\n    litellm_params:\n"
        f"      {{model: openai/smol, api_base: {server}/v1, api_key: none}}\n"
    )
    return ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]


def _route(program: str, *words: str) -> Callable[[Path, str, int], list[str]]:
    def command(files: Path, server: str, port: int) -> list[str]:
        own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        return [program, *words, "--worker-urls", server, *own]

    return command


def _nginx(files: Path, server: str, port: int) -> list[str]:
    config = files / "nginx.conf"
    places = "".join(
        f"{name}_temp_path {files};" for name in ("proxy", "client_body", "fastcgi", "uwsgi")
    )
    config.write_text(
        f"daemon off; pid {files}/pid; error_log {files}/error.log; events {{}}\n"
        f"http {{ access_log off; {places} scgi_temp_path {files};\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {server}; }} }} }}\n"
    )
    return ["nginx", "-p", str(files), "-c", str(config)]


GATEWAYS: dict[str, Gateway] = {
    gateway.name: gateway
    for gateway in (
        Gateway("nginx", "", _nginx),
        Gateway("smg", "smg==1.13.0", _route("smg", "launch")),
        Gateway("vllm-router", "vllm-router==0.1.17", _route("vllm-router")),
        Gateway("litellm", "litellm[proxy]==1.108.7", _litellm, KEY),
    )
}
"""nginx passes everything on; the others know the OpenAI API and hide the rest."""


def free_port() -> int:
    """A port of the loopback interface that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def in_front_of(server: str, gateway: Gateway) -> Iterator[str]:
    """The address of a gateway that forwards to ``server``; it has ended afterwards.

    Raises:
        RuntimeError: it was not ready in time; with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        files, port = Path(folder), free_port()
        program, *words = gateway.command(files, server, port)
        if gateway.requirement:
            program = str(gateway.folder / "venv/bin" / program)
        with (files / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_GUARDED, program, *words],
                cwd=files,
                env=os.environ | {"LITELLM_MASTER_KEY": KEY, "HOME": folder},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                url = f"http://127.0.0.1:{port}"
                if not _gets_ready(url, gateway.key, process):
                    words_said = (files / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{gateway.name} did not get ready:\n{words_said}")
                yield url
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(20)


def _gets_ready(url: str, key: str | None, process: subprocess.Popen[bytes]) -> bool:
    """Whether it lists the model in time; one with health checks knows it only after the first."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            request = urllib.request.Request(f"{url}/v1/models", headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                if b'"smol"' in answer.read():
                    return True
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        time.sleep(0.2)
    return False


if __name__ == "__main__":
    for one in GATEWAYS.values():
        one.install()
        print(f"{one.name} is installed", file=sys.stderr)
