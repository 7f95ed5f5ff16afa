"""The bodies of requests that load and unload adapters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dovetail.server.endpoint import Body

MAX_PATH_CHARS = 4096
Name = Annotated[str, Field(min_length=1, max_length=256)]


class LoadAdapterRequest(Body):
    """An adapter to serve as `lora_name`. `load_inplace`: replace a loaded one with this name."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
    base_model_name: Annotated[str, Field(max_length=256)] | None = None
    load_inplace: bool = False


class UnloadAdapterRequest(Body):
    """An adapter to unload. Only its name counts."""

    lora_name: Name
    lora_int_id: int | None = None
