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
