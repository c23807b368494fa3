"""Take secrets out of any text before it is shown or stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MARK = "<redacted>"
UNMISTAKABLE = 8
"""Characters from which on a known secret is taken out of whatever holds it; a shorter one, such as
the "vllm" that some give as a key, may stand there by right."""

_NAME = r"(?:[\w-]*[_-])?(?:api[_-]?key|access[_-]?key|token|secret|password|passwd)(?![\w-])"
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s&"',;}\]]+)"""
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # --api-key VALUE, --hf-token=VALUE
        (rf"(--{_NAME})(=|\s+)(?!-){_VALUE}", rf"\1\2{MARK}"),
        # HF_TOKEN=VALUE, ?api_key=VALUE
        (rf"((?<![\w-]){_NAME})=(?!=){_VALUE}", rf"\1={MARK}"),
        # "api_key": "VALUE"
        (rf"""(["']{_NAME}["'])(\s*:\s*){_VALUE}""", rf'\1\2"{MARK}"'),
        # Authorization: Basic VALUE, X-Api-Key: VALUE
        (
            r"((?:proxy-)?authorization|[\w-]*api-key)(['\"]?\s*:\s*['\"]?)"
            r"(?:(?:bearer|basic|token)\s+)?(?!<redacted>)[^\s\"',]+",
            rf"\1\2{MARK}",
        ),
        (r"\b(bearer)(\s+)(?!<redacted>)[\w.~+/=-]{6,}", rf"\1\2{MARK}"),
        # the user part of a URL
        (r"(\w://)[^\s/@\"']+@", rf"\1{MARK}@"),
        # the shapes of well-known providers' keys, and JSON web tokens
        (r"\b(?:sk|pk|rk|hf|gsk|xai|nvapi|ghp|gho|ghs|glpat|r8)[-_][\w-]{8,}", MARK),
        (r"\bgithub_pat_\w{8,}|\bAIza[\w-]{20,}|\bAKIA[0-9A-Z]{12,}", MARK),
        (r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+", MARK),
    )
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without keys, tokens and passwords; doing it twice changes nothing more.

    Args:
        secrets: values known to be secret, removed wherever and however they appear.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, MARK)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redact_all(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Apply ``redact`` to every string in nested lists and dicts (keys stay as they are)."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {key: redact_all(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [redact_all(item, secrets) for item in value]
    return value
