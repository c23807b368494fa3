"""One measuring session per server and host: two at once would measure each other."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_llmperf.client.http import parse_root
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.redact import redact


class ServerLock:
    """Holds a server's URL for this process until ``release`` or the process's end."""

    def __init__(self, url: str) -> None:
        """Take the lock.

        Raises:
            ConfigError: when another process on this host measures that server; it is named. Or
                when the address, or the lock file, cannot be used.
        """
        digest = hashlib.sha256(_spell(url).encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"llmperf-{os.getuid()}"
        self._lock = FileLock(folder / f"{digest}.lock")
        self._holder = folder / f"{digest}.json"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._holder.write_text(json.dumps({"pid": os.getpid(), "cwd": str(Path.cwd())}))
        except Timeout:
            raise ConfigError(
                f"{redact(url)} is being measured by {self._read_holder()}; two runs at once would "
                "measure each other. Wait for it to end, or stop it."
            ) from None
        except OSError as error:
            self._lock.release()
            raise ConfigError(
                f"cannot lock the server for this run: {folder}: {error.strerror}; make room or "
                "rights there, or name another folder in TMPDIR"
            ) from None

    def _read_holder(self) -> str:
        try:
            holder = json.loads(self._holder.read_text())
            return f"process {holder['pid']} in {holder['cwd']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Give the server free. Doing it twice is harmless."""
        self._lock.release()


def _spell(url: str) -> str:
    """One spelling for all addresses of a server; the scheme does not tell servers apart."""
    root = parse_root(url)
    host = "127.0.0.1" if root.host == "localhost" else root.host
    return f"{host}:{root.port or {'http': 80}.get(root.scheme, 443)}{root.path.rstrip('/')}"
