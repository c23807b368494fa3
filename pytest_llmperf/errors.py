"""Errors with a message for the user: what is wrong, and what to do next."""

from __future__ import annotations


class LlmPerfError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(LlmPerfError):
    """Bad options, profile, baseline file or environment; becomes pytest's usage error (exit 4)."""


class ServerUnusable(LlmPerfError):
    """The server cannot be measured at all: unreachable, unauthorised, not an OpenAI endpoint."""


class ServerDied(LlmPerfError):
    """The server answered earlier in this run and does not any more."""


class RequestRejected(LlmPerfError):
    """The server answered a request with an HTTP error.

    Attributes:
        status: the HTTP status code.
        body: the start of the response body, as text, secrets removed.
    """

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.body = body
