"""What all models of results and files share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Frozen, strict about names, and without NaN or infinity."""

    # pydantic before 2.10 warns of names that start with model_
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )
