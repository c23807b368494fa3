"""Install the peers, each into an environment of its own under ``.bench/``.

usage: python -m benchmarks.install [NAME ...]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from benchmarks.clients import Client, every
from benchmarks.load import BENCH
from benchmarks.truth import build

LIMIT_S = 600
_WORDS = "the wind over a river then came and of light in stone fell near to sea"


def write_tokenizer() -> None:
    """A word is a token: peers want a tokenizer on disk, and none may be fetched."""
    folder = BENCH / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[UNK]", "<s>", "</s>"]
    words = [*special, *_WORDS.split(), *(f"w{i}" for i in range(4000))]
    vocabulary = {word: i for i, word in enumerate(words)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": word, "special": True, **flags}
                for i, word in enumerate(special)
            ],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
            **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "[UNK]",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": 131072,
            "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
        },
        "config.json": {"model_type": "gpt2", "vocab_size": len(words)},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def install(client: Client) -> str:
    """Empty, or why it could not be installed."""
    if client.is_installed:
        return ""
    folder = BENCH / client.folder
    python = shutil.which(client.interpreter) if client.interpreter else sys.executable
    if python is None:
        return f"it needs {client.interpreter}, which is not on the PATH"
    try:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    except subprocess.CalledProcessError:  # such as a shim of a version manager that has none
        folder.mkdir(parents=True, exist_ok=True)
        return f"{python} cannot make an environment"
    pip = [str(client.python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    try:
        steps = [[*client.pip_options, *client.requirements], list(client.more)]
        for step in filter(None, steps):
            subprocess.run(
                [*pip, *step], check=True, timeout=LIMIT_S, stderr=subprocess.PIPE, text=True
            )
    except subprocess.TimeoutExpired:
        return f"not installed within {LIMIT_S} s"
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        return (said or ["pip failed"])[0][:300]
    (folder / "installed").touch()
    return ""


if __name__ == "__main__":
    write_tokenizer()
    build()
    for client in every():
        if len(sys.argv) == 1 or client.folder in sys.argv[1:]:
            reason = install(client)
            if reason:
                (BENCH / client.folder / "reason").write_text(reason)
            print(f"{client.name}: {reason or 'installed'}", flush=True)
