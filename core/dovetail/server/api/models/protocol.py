"""Bodies of /v1/models."""

from __future__ import annotations

from typing import Literal

from dovetail.server.generate.bodies import Reply


class ModelCard(Reply):
    """One served name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dovetail"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(Reply):
    """All served names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
