"""LoRARequest: the adapter of an offline request, with vLLM's fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by name, with the folder or hub id that it is loaded from on first use.
    `lora_int_id` is ignored: the name identifies the adapter. `load_inplace` reloads it, replacing
    the loaded one of this name."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if not self.lora_name:
            raise ValueError("lora_name is empty")
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}, and ids begin with 1")
