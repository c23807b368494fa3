"""What a measured request asks for, and how it gives way to a server that takes less."""

from __future__ import annotations

import re
from typing import Any, Literal

from pytest_llmperf.measure.prompts import Prompt
from pytest_llmperf.model.settings import Workload

UsageMode = Literal["continuous", "final", "none"]

_LIMIT = re.compile(
    r"(?:context[ _](?:length|size|window)|max_model_len|max_total_tokens|n_ctx|must be <=)"
    r"\D{0,30}?(\d{2,})",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|max_model_len|too long|too many tokens|exceed\w* .*tokens",
    re.IGNORECASE,
)
_RAN_OUT = re.compile(r"context[ _](?:length|size|window)\b.*\bexceed", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(
    r"unexpected|extra|unknown|unrecogni[sz]ed|not permitted|not allowed|unsupported|invalid field",
    re.IGNORECASE,
)


def too_long(words: str) -> bool:
    """Whether a refusal says that prompt and output do not fit the model."""
    return _TOO_LONG.search(words) is not None


def no_room(status: int | None, words: str) -> bool:
    """Whether a failed request says that the server cannot hold it: it was refused for its length,
    or ended when the KV cache it shared with others had run out (llama.cpp, after HTTP 200)."""
    if status in (400, 413, 422):
        return too_long(words)
    return _RAN_OUT.search(words) is not None


def named_limit(words: str) -> int | None:
    """The limit in tokens that such a refusal names, if it names one."""
    match = _LIMIT.search(words)
    return int(match[1]) if match else None


class RequestForm:
    """Writes request bodies for one server. A field the server rejects is left out from then on."""

    def __init__(self, model: str, workload: Workload) -> None:
        self._model = model
        self._workload = workload
        self.usage_mode: UsageMode = "continuous"
        self.ignore_eos = True

    @property
    def path(self) -> str:
        """Where requests go, below the server's root."""
        chat = self._workload.endpoint == "chat"
        return "/v1/chat/completions" if chat else "/v1/completions"

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """A streaming request. The user's extra fields win over ours."""
        body: dict[str, Any] = {
            "model": self._model,
            **prompt.payload(self._workload.endpoint),
            "stream": True,
            "max_tokens": max_tokens,
            "temperature": self._workload.temperature,
            "top_p": self._workload.top_p,
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.usage_mode != "none":
            body["stream_options"] = {"include_usage": True}
        if self.usage_mode == "continuous":
            body["stream_options"]["continuous_usage_stats"] = True
        return body | dict(self._workload.extra_body)

    def give_way(self, status: int | None, words: str) -> bool:
        """After a refusal: leave out the field it rejects. False when it is about none of ours."""
        if status not in (400, 422):
            return False
        names_usage = re.search("stream_options|continuous_usage_stats|include_usage", words)
        unnamed = _UNKNOWN_FIELD.search(words) and not too_long(words)
        if "ignore_eos" in words:
            given, self.ignore_eos = self.ignore_eos, False
            return given
        if self.usage_mode == "continuous" and (names_usage or unnamed):
            self.usage_mode = "final"
        elif self.ignore_eos and unnamed and not names_usage:
            self.ignore_eos = False
        elif self.usage_mode == "final" and (names_usage or unnamed):
            self.usage_mode = "none"
        else:
            return False
        return True
