"""Ollama."""

from __future__ import annotations

from pytest_llmperf.engines.answers import child, objects, read_object, whole, word
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask
from pytest_llmperf.model.result import ServerInfo


class Ollama(Generic):
    """Ollama. It has no metrics and no tokenizer endpoint; ``/api/ps`` lists loaded models."""

    name = "ollama"

    async def describe(self) -> ServerInfo:
        """Version, and context and quantization of the model where it is loaded."""
        version = read_object(await ask(self.api, "/api/version")).get("version")
        loaded = objects(read_object(await ask(self.api, "/api/ps")).get("models"))
        model = next((m for m in loaded if self.card.id in (m.get("name"), m.get("model"))), None)
        notes = [] if model else ["not loaded yet: Ollama loads it at the first request"]
        return self.info(
            version=word(version),
            max_model_len=whole(child(model, "context_length")),
            quantization=word(child(model, "details", "quantization_level")),
            notes=notes,
        )
