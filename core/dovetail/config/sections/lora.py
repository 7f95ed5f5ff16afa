"""LoRAConfig: low-rank adapters of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    "LoRA adapters."

    enable_lora: bool = flag(False, help="serve LoRA adapters in addition to the model")
    lora_modules: tuple[str, ...] = flag(
        (),
        metavar="NAME=PATH",
        help="LoRA adapters to load at start, each with the model name that requests use",
    )
    max_loras: int = flag(1, ge=1, help="maximum number of LoRA adapters in one step")
    max_lora_rank: int = flag(16, ge=1, le=512, help="maximum rank of a LoRA adapter")
    max_cpu_loras: int | None = flag(
        None,
        ge=1,
        help="maximum number of LoRA adapters kept in host memory",
        default_note="max-loras",
    )
    lora_dtype: str = flag("auto", kind="lora_dtype", help="data type of LoRA weights")
    lora_extra_vocab_size: int = flag(
        256,
        ge=0,
        help="maximum number of tokens that a LoRA adapter may add to the model's vocabulary",
    )
    enable_lora_bias: bool = flag(False, help="accept LoRA adapters with biases")
    fully_sharded_loras: bool = flag(
        False,
        help="divide all LoRA computation over the devices; no effect, as an adapter's matrices "
        "are divided as its layers are",
    )
    long_lora_scaling_factors: tuple[str, ...] = flag(
        (),
        metavar="X",
        help="linear rope scalings that LoRA adapters may have been trained with, in place of the "
        "model's own",
    )
    lora_resolvers: tuple[str, ...] = flag(
        (),
        kind="adapter_resolver",
        metavar="NAME",
        help="where the adapters are looked for that requests name and that are not loaded",
        default_note="folder with --lora-resolver-cache-dir, else none",
    )
    lora_resolver_cache_dir: str | None = flag(
        None,
        metavar="DIR",
        help="folder whose subfolders are LoRA adapters, which are loaded when a request names one",
    )
    default_mm_loras: Mapping[str, Any] = flag(
        {},
        help="LoRA adapters that requests with media of a kind use if they name none, as "
        "MODALITY: PATH",
    )
