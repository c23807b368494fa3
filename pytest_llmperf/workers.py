"""Under pytest-xdist: which server a worker measures, and its results on their way back."""

from __future__ import annotations

import re

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.settings import Settings


def worker_id(config: pytest.Config) -> str | None:
    """``gw0`` on a worker of pytest-xdist, else None."""
    worker = getattr(config, "workerinput", None)
    return worker["workerid"] if worker else None


def split_urls(text: str) -> list[str]:
    """Several servers in one ``--llm-url``; a simulator's parameters may hold commas."""
    return [url.strip() for url in re.split(r",\s*(?=https?://|sim\b)", text)]


def own_url(config: pytest.Config, text: str | None, settings: Settings) -> str | None:
    """The server of this process: the only one, or on a worker its own.

    Raises:
        ConfigError: workers would share a server, and measure each other.
    """
    urls = split_urls(text) if text else []
    worker = worker_id(config)
    if worker is None:
        if len(urls) > 1:
            raise ConfigError(
                f"--llm-url names {len(urls)} servers: they are measured by as many workers of "
                f"pytest-xdist, add -n {len(urls)}"
            )
        return text
    count = config.workerinput["workercount"]  # type: ignore[attr-defined]
    simulated = len(urls) == 1 and urls[0].startswith("sim")
    if settings.serve or simulated or len(urls) < count:
        raise ConfigError(
            f"{count} workers of pytest-xdist would measure each other's load: cells run one "
            "after the other. Leave -n out (-n 0), or name one server for each worker: "
            "--llm-url http://a:8000,http://b:8000"
        )
    if settings.update or settings.runs > 1 or settings.against or settings.serve_against:
        raise ConfigError(
            "a worker of pytest-xdist updates no baseline, and measures neither several runs nor "
            "two servers; leave -n out (-n 0)"
        )
    return urls[int(worker.removeprefix("gw"))]
