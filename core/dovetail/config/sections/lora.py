"""LoRAConfig: low-rank adapters beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """Low-rank adapters."""

    enable_lora: bool = flag(False, help="serve low-rank adapters beside the model")
    lora_modules: tuple[str, ...] = flag(
        (), metavar="NAME=PATH", help="adapters to load at start, each under a served name"
    )
    max_loras: int = flag(1, ge=1, help="most adapters in one step")
    max_lora_rank: int = flag(16, ge=1, help="largest rank of an adapter")
    max_cpu_loras: int | None = flag(
        None, ge=1, help="most adapters kept in the host's memory", default_note="max-loras"
    )
    lora_dtype: str = flag("auto", kind="lora_dtype", help="number type of adapter weights")
    lora_extra_vocab_size: int = flag(256, ge=0, help="most tokens that an adapter may add")
    enable_lora_bias: bool = flag(False, help="accept adapters that have biases")
    fully_sharded_loras: bool = flag(False, help="divide all of an adapter's work over the devices")
    default_mm_loras: Mapping[str, Any] = flag(
        {}, help="adapters used by themselves for a kind of media, as MODALITY: PATH"
    )
