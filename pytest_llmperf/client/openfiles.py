"""How many connections this process may hold open."""

from __future__ import annotations

from pytest_llmperf.model.errors import ServerUnusable

SPARE = 256
"""Files and sockets beside those of the streams."""


def allow_connections(n: int) -> None:
    """Raise this process's limit of open files to what ``n`` connections need.

    Raises:
        ServerUnusable: the system's hard limit is below that.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n + SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ServerUnusable(
            f"{n:,} connections need {needed:,} open files, and this host allows {hard:,}: raise "
            "the hard limit (ulimit -Hn), or spread the load over more hosts (--llm-load)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
