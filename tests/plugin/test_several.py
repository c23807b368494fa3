"""Several servers and several runs: which is whose, and what is left when one of them fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.model.settings import Settings
from pytest_llmperf.run.series import Series
from pytest_llmperf.run.workers import own_url


def worker(name: str) -> Any:
    return SimpleNamespace(workerinput={"workerid": name, "workercount": 2})


def test_each_worker_has_a_server_and_one_that_replaces_a_dead_one_has_none() -> None:
    """pytest-xdist gives the new worker the next number; it may not share a server."""
    urls = "http://a:1,http://b:2"
    assert [own_url(worker(name), urls, Settings()) for name in ("gw0", "gw1")] == [
        "http://a:1",
        "http://b:2",
    ]
    with pytest.raises(ConfigError, match="a worker of pytest-xdist died"):
        own_url(worker("gw2"), urls, Settings())


def test_a_run_is_finished_once_though_the_next_one_cannot_start() -> None:
    """A second update would find the baseline changed, by the first, and say so."""
    finished: list[int] = []

    class Run:
        final: object = None
        settings = Settings()
        unwritable: tuple[str, ...] = ()

        def finish(self, status: int, interrupted: str) -> int:
            finished.append(status)
            self.final = object()
            return status

    series = Series(None, [])  # type: ignore[arg-type]
    series.runs.append(Run())  # type: ignore[arg-type]
    assert [series.finish(1, ""), series.finish(1, "")] == [1, 1]
    assert finished == [1]
