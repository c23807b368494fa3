"""LM Studio, from recorded shapes."""

from __future__ import annotations

from pytest_llmperf.engines.answers import child, objects, read_object, whole, word
from pytest_llmperf.engines.generic import Generic
from pytest_llmperf.engines.page import ask
from pytest_llmperf.model.result import ServerInfo


class LmStudio(Generic):
    """LM Studio. ``/api/v0/models`` tells context and quantization of each model."""

    name = "lmstudio"

    async def describe(self) -> ServerInfo:
        """The context it was loaded with; the largest it could have is not what it has."""
        listed = objects(read_object(await ask(self.api, "/api/v0/models")).get("data"))
        model = next((m for m in listed if m.get("id") == self.card.id), None)
        notes = []
        if child(model, "state") == "not-loaded":
            notes.append("not loaded yet: LM Studio loads it at the first request")
        return self.info(
            max_model_len=whole(child(model, "loaded_context_length")),
            quantization=word(child(model, "quantization")),
            notes=notes,
        )
