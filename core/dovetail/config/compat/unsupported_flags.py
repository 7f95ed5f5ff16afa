"""The ledger of refused flags: what each would need, so that none is accepted and then ignored.

A flag is *honoured* when it is a field of a config group and has no row here, *mapped* when it is
a field of `deprecated_flags.DeprecatedFlags`, and *refused* when it has a row here: then only the
values that ask for nothing pass, its default and those a row names. To honour a flag, build it
and delete its row. Knows no plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import Flag


@dataclass(frozen=True, slots=True)
class UnsupportedFlag:
    """Why a flag is refused. `passing` are values that pass beside the default; an object passes
    when `passing_items` are all it has."""

    missing: str
    fix: str = "leave the flag out."
    passing: tuple[Any, ...] = ()
    passing_items: tuple[tuple[str, Any], ...] = ()


_LORA = UnsupportedFlag(
    "low-rank adapters are not supported yet.", "merge the adapter into the checkpoint."
)
_MEDIA = UnsupportedFlag(
    "this engine reads text alone; models with images, sound or video are not supported yet."
)
_REPLICAS = UnsupportedFlag(
    "one engine serves the model; several behind one address are not supported yet.",
    "start several servers on their own ports behind a balancer.",
)
_EXPERTS = UnsupportedFlag("experts are not divided over devices yet.")
_HALVES = UnsupportedFlag("there is no communication between devices that a half batch could hide.")
_MAMBA = UnsupportedFlag("models with Mamba layers are not supported yet.", passing=("float32",))
_TRANSFER = UnsupportedFlag("caches do not move between engines yet.")

UNSUPPORTED_FLAGS: dict[str, UnsupportedFlag] = {
    "code_revision": UnsupportedFlag(
        "dovetail never runs code that comes with a checkpoint.",
        "leave the flag out; --revision chooses the checkpoint itself.",
    ),
    "data_parallel_address": _REPLICAS,
    "data_parallel_hybrid_lb": _REPLICAS,
    "data_parallel_rank": UnsupportedFlag(_REPLICAS.missing, _REPLICAS.fix, passing=(0,)),
    "data_parallel_rpc_port": _REPLICAS,
    "data_parallel_size": _REPLICAS,
    "data_parallel_size_local": UnsupportedFlag(_REPLICAS.missing, _REPLICAS.fix, passing=(1,)),
    "data_parallel_start_rank": UnsupportedFlag(_REPLICAS.missing, _REPLICAS.fix, passing=(0,)),
    "data_parallel_backend": _REPLICAS,
    "dbo_decode_token_threshold": _HALVES,
    "dbo_prefill_token_threshold": _HALVES,
    "decode_context_parallel_size": UnsupportedFlag("a request's context stays on one device."),
    "default_mm_loras": _LORA,
    "disable_chunked_mm_input": _MEDIA,
    "enable_dbo": _HALVES,
    "enable_eplb": _EXPERTS,
    "enable_expert_parallel": _EXPERTS,
    "enable_lora": _LORA,
    "enable_lora_bias": _LORA,
    "enable_prompt_embeds": UnsupportedFlag(
        "prompts are text or token ids, not embeddings, so far."
    ),
    "eplb_config": UnsupportedFlag(
        _EXPERTS.missing,
        passing_items=(
            ("log_balancedness", False),
            ("num_redundant_experts", 0),
            ("step_interval", 3000),
            ("window_size", 1000),
        ),
    ),
    "expert_placement_strategy": _EXPERTS,
    "fully_sharded_loras": _LORA,
    "headless": _REPLICAS,
    "interleave_mm_strings": _MEDIA,
    "io_processor_plugin": UnsupportedFlag(
        "there is no kind of plugin that turns other data into prompts."
    ),
    "kv_events_config": _TRANSFER,
    "kv_sharing_fast_prefill": UnsupportedFlag(
        "models that share caches between layers are not supported yet."
    ),
    "kv_transfer_config": _TRANSFER,
    "limit_mm_per_prompt": UnsupportedFlag(
        _MEDIA.missing, passing_items=(("audio", 0), ("image", 0), ("video", 0))
    ),
    "logits_processor_pattern": UnsupportedFlag(
        "a request cannot name code to run.", "load processors at start with --logits-processors."
    ),
    "lora_dtype": _LORA,
    "lora_extra_vocab_size": _LORA,
    "lora_modules": _LORA,
    "mamba_cache_dtype": _MAMBA,
    "mamba_ssm_cache_dtype": _MAMBA,
    "max_cpu_loras": _LORA,
    "max_lora_rank": _LORA,
    "max_loras": _LORA,
    "media_io_kwargs": _MEDIA,
    "allowed_local_media_path": _MEDIA,
    "allowed_media_domains": _MEDIA,
    "mm_encoder_tp_mode": _MEDIA,
    "mm_processor_cache_gb": UnsupportedFlag(_MEDIA.missing, passing=(0.0,)),
    "mm_processor_cache_type": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "mm_shm_cache_max_object_size_mb": _MEDIA,
    "override_attention_dtype": UnsupportedFlag("attention computes in the type of --dtype."),
    "pipeline_parallel_size": UnsupportedFlag(
        "dividing the layers over devices is not supported yet."
    ),
    "pooler_config": UnsupportedFlag(
        "this engine generates text; pooling models are not supported yet."
    ),
    "ray_workers_use_nsight": UnsupportedFlag("there are no Ray workers."),
    "tensor_parallel_size": UnsupportedFlag(
        "dividing a layer over devices is not supported yet.", "use 1."
    ),
    "trust_remote_code": UnsupportedFlag(
        "dovetail never runs code that comes with a checkpoint.",
        "leave the flag out; give the architecture as a model plugin (dotted path).",
    ),
    "video_pruning_rate": _MEDIA,
    "worker_extension_cls": UnsupportedFlag(
        "no request can call a worker's methods.", "write a worker and name it with --worker-cls."
    ),
}


def passes(flag: Flag, row: UnsupportedFlag, value: Any) -> bool:
    """Return whether a value asks for nothing: null, nothing at all, the default, or as named."""
    asks_nothing = value is None or value == flag.default or value in ((), "")
    if isinstance(value, Mapping):
        asks_nothing = all(item in row.passing_items for item in value.items())
    return asks_nothing or any(value == other for other in row.passing)
