"""One measuring session per server and host: two at once would measure each other."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_llmperf.errors import ConfigError


class ServerLock:
    """Holds a server's URL for this process until ``release`` or the process's end."""

    def __init__(self, url: str) -> None:
        """Take the lock.

        Raises:
            ConfigError: when another process on this host measures that server; it is named.
        """
        digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"llmperf-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = FileLock(folder / f"{digest}.lock")
        self._holder = folder / f"{digest}.json"
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{url} is being measured by {self._read_holder()}; two runs at once would "
                "measure each other. Wait for it to end, or stop it."
            ) from None
        self._holder.write_text(json.dumps({"pid": os.getpid(), "cwd": str(Path.cwd())}))

    def _read_holder(self) -> str:
        try:
            holder = json.loads(self._holder.read_text())
            return f"process {holder['pid']} in {holder['cwd']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Give the server free. Doing it twice is harmless."""
        self._lock.release()
