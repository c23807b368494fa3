"""``transformers serve``."""

from __future__ import annotations

from pytest_llmperf.engines.generic import Generic


class TransformersServe(Generic):
    """It tells nothing beyond its models: no metrics, no tokenizer, no limits."""

    name = "transformers"
