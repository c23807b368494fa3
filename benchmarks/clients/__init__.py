"""The clients that are measured: each a command, and how to read what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import BENCH, Load, Seen


@dataclass(frozen=True)
class Client:
    """One client."""

    name: str
    command: Callable[[str, Load, Path], list[str]]
    """Of a URL, a load, and the file or folder for what it says."""
    read: Callable[[Path], Seen] = Seen.load
    requirements: tuple[str, ...] = ()
    """What its own environment needs; none: it runs in ours."""
    interpreter: str = ""
    """That it needs, where ours may be too old."""
    pip_options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    """Installed after that, with dependencies."""
    several_processes: bool = False
    """It may use all cores, not one."""

    @property
    def folder(self) -> str:
        return self.name.split(" ")[0]

    @property
    def python(self) -> Path:
        """Of its own environment, or ours."""
        return BENCH / self.folder / "bin" / "python" if self.requirements else Path(sys.executable)

    @property
    def is_installed(self) -> bool:
        return not self.requirements or (BENCH / self.folder / "installed").exists()


def every() -> list[Client]:
    """All of them, ours first."""
    from benchmarks.clients import (
        aiohttp_plain,
        aiperf,
        bare,
        guidellm,
        httpx_stock,
        inference_perf,
        llama_benchy,
        ours,
        sglang,
    )

    modules = (
        ours, bare, httpx_stock, aiohttp_plain,
        sglang, aiperf, guidellm, llama_benchy, inference_perf,
    )  # fmt: skip
    return [client for module in modules for client in module.CLIENTS]


def script(module: str, *options: str) -> Callable[[str, Load, Path], list[str]]:
    """The command of a client that is a module here."""

    def command(url: str, load: Load, out: Path) -> list[str]:
        numbers = [
            str(getattr(load, name)) for name in ("streams", "requests", "tokens", "window_s")
        ]
        return [sys.executable, "-m", module, url, *numbers, str(out), *options]

    return command
