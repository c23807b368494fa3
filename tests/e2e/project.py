"""pytest as a user starts it, and servers for it to meet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import Handler, Reply, Request, chunk

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--llm-contexts=1000", "--llm-concurrency=1")
"""A prefill and a decode cell."""
QUICK = ("--llm-duration=1", "--llm-settle=0.2", "--llm-max-tokens=512")


def models(*ids: str) -> Handler:
    """Answers ``/v1/models`` with a list of these."""

    async def answer(request: Request, reply: Reply) -> None:
        cards = [{"id": name, "object": "model", "owned_by": "test"} for name in ids]
        await reply.respond(200, {"object": "list", "data": cards})

    return answer


def says(status: int, body: bytes | str | dict[str, Any], **headers: str) -> Handler:
    """The same answer to every request."""

    async def answer(request: Request, reply: Reply) -> None:
        await reply.respond(status, body, **headers)

    return answer


async def chat(request: Request, reply: Reply) -> None:
    """A well-behaved completion: one token every 2 ms."""
    body = request.json
    words = sum(len(message["content"].split()) for message in body["messages"])
    await reply.start_stream()
    last = body.get("max_tokens") or body["max_completion_tokens"]
    for i in range(1, last + 1):
        event = chunk(f"w{i % 97} ", tokens=i, finish="length" if i == last else None)
        event["usage"]["prompt_tokens"] = words
        await reply.event(event)
        await asyncio.sleep(0.002)
    await reply.event("[DONE]")
    await reply.end_stream()


class Started:
    """``pytest`` in a process group of its own, watched from outside."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        env: dict[str, str] | None = None,
        sigint: signal.Handlers = signal.SIG_DFL,
    ) -> None:
        self.folder = folder
        self._out = (folder / "stdout.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", "-p", "no:randomly", "-rA", *args],
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}),
            stdout=self._out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # in any case: these tests may themselves be a background job, which ignores it
            preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
        )

    @property
    def output(self) -> str:
        return (self.folder / "stdout.txt").read_text(errors="replace")

    @property
    def results(self) -> dict[str, Any]:
        """``results.json`` as it is now."""
        path = self.folder / "llmperf-report" / "results.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def children(self) -> list[int]:
        """Its child processes, whichever thread made them: the simulator, or a guard."""
        found: list[int] = []
        with suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status; fails the test when it hangs. A busy machine takes 20 s to start it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"pytest hangs:\n{self.output}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._out.close()


@contextmanager
def started(
    folder: Path,
    *args: str,
    env: dict[str, str] | None = None,
    sigint: signal.Handlers = signal.SIG_DFL,
) -> Iterator[Started]:
    """Start pytest; it is dead afterwards whatever happens."""
    run = Started(folder, *args, env=env, sigint=sigint)
    try:
        yield run
    finally:
        run.kill()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
