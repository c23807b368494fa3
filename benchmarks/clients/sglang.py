"""SGLang's serving benchmark: the Python client and the Rust one that its wheel carries.

Its package wants a CUDA stack to be imported; both clients need next to nothing of it, so it is
installed without dependencies, and what remains of it at import is stood in for.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import runpy
import sys
import types
from pathlib import Path

from benchmarks.clients import Client
from benchmarks.load import BENCH, MODEL, PROMPT_TOKENS, Load, Seen


def _command(kind: str, url: str, load: Load, out: Path) -> list[str]:
    options = [
        "--backend=sglang-oai-chat",
        f"--base-url={url}",
        "--dataset-name=random-ids",
        f"--tokenizer={BENCH / 'tokenizer'}",
        f"--model={MODEL}",
        f"--num-prompts={load.requests}",
        f"--max-concurrency={load.streams}",
        f"--random-input-len={PROMPT_TOKENS}",
        f"--random-output-len={load.tokens}",
        "--random-range-ratio=1",
        "--disable-tqdm",
        f"--output-file={out}",
    ]
    options += ["--disable-retokenize"] if kind == "rust" else []
    return [str(CLIENTS[0].python), "-m", "benchmarks.clients.sglang", kind, *options]


def _read(out: Path) -> Seen:
    said = json.loads(out.read_text())
    # its ITL is of chunks where a chunk has several tokens; TPOT is of tokens
    return Seen(
        said["median_ttft_ms"],
        said["mean_tpot_ms"],
        said["p99_itl_ms"],
        said["output_throughput"],
    )


def _run_rust(package: Path) -> None:
    (path,) = package.glob("srt/rust_extensions/_bench*.so")
    loader = importlib.machinery.ExtensionFileLoader("_bench", str(path))
    spec = importlib.util.spec_from_loader("_bench", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.run_argv(sys.argv)


def _run_python(package: Path) -> None:
    def stand_in(name: str, path: Path | None = None, **content: object) -> None:
        module = types.ModuleType(name)
        module.__path__ = [str(path)] if path else []
        module.__dict__.update(content)
        sys.modules[name] = module

    stand_in("sglang", package)
    stand_in("sglang.srt")
    stand_in("sglang.srt.disaggregation")
    stand_in("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")
    stand_in("sglang.srt.utils")
    stand_in(
        "sglang.srt.utils.network",
        resolve_base_url=lambda url, *rest: url,
        resolve_host_port=lambda url, *rest: url,
    )
    runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)


_VENV = {
    "read": _read,
    "requirements": ("sglang==0.5.23",),
    "pip_options": ("--no-deps",),
    "more": (
        "aiohttp", "msgspec", "numpy", "orjson", "requests", "tqdm", "transformers", "pillow",
        "pybase64", "datasets",
    ),
}  # fmt: skip
CLIENTS = [
    Client("sglang (rust)", lambda *a: _command("rust", *a), several_processes=True, **_VENV),  # type: ignore[arg-type]
    Client("sglang (python)", lambda *a: _command("python", *a), **_VENV),  # type: ignore[arg-type]
]

if __name__ == "__main__":
    kind = sys.argv.pop(1)
    folder = next(Path(p) for p in sys.path if p.endswith("site-packages")) / "sglang"
    _run_rust(folder) if kind == "rust" else _run_python(folder)
