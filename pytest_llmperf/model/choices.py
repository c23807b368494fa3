"""The words that an option takes, as types. Light: every pytest run loads it."""

from __future__ import annotations

from typing import Literal

CapacityMode = Literal["reserved", "shared", "try"]
Endpoint = Literal["chat", "completions"]
PromptMode = Literal["shared", "distinct"]
UpdateMode = Literal["moved", "all", "new", "better", "add"]
