"""Bodies of /v1/models."""

from __future__ import annotations

from typing import Literal

from dovetail.server.endpoint import Reply


class ModelCard(Reply):
    """One served name. `root` is the model or an adapter's folder, `parent` the model of an
    adapter; `capabilities` are words for what requests may use, `weights_version` is that of
    the base model's weights, "default" until they are replaced."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dovetail"
    root: str
    parent: str | None = None
    max_model_len: int
    capabilities: list[str]
    weights_version: str


class ModelList(Reply):
    """All served names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
