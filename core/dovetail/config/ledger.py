"""The ledger of refused flags: what each would need, so that none is accepted and then ignored.

A flag is *honoured* when it is a field of a config group and has no row here, *mapped* when it is a
field of `older.OlderFlags`, and *refused* when it has a row here: then only the values that ask for
nothing pass, its default and those a row names. To honour a flag, build it and delete its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.engine import Config, flags
from dovetail.config.field import Flag
from dovetail.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a flag is refused. `passing` are values that pass beside the default; an object passes
    when `passing_items` are all it has."""

    missing: str
    fix: str = "leave the flag out."
    passing: tuple[Any, ...] = ()
    passing_items: tuple[tuple[str, Any], ...] = ()


_LORA = Refused("LoRA adapters are not supported yet.", "merge the adapter into the checkpoint.")
_MEDIA = Refused(
    "this engine reads text alone; models with images, sound or video are not supported yet."
)
_REPLICAS = Refused(
    "data parallelism is not supported yet; one engine serves the model.",
    "start several servers on their own ports behind a balancer.",
)
_EXPERTS = Refused("expert parallelism is not supported yet.")
_HALVES = Refused("dual batch overlap needs several devices, which are not supported yet.")
_MAMBA = Refused("models with Mamba layers are not supported yet.", passing=("float32",))
_TRANSFER = Refused("KV cache transfer between engines is not supported yet.")

REFUSED: dict[str, Refused] = {
    "code_revision": Refused(
        "dovetail never runs code that comes with a checkpoint.",
        "leave the flag out; --revision chooses the checkpoint itself.",
    ),
    "data_parallel_address": _REPLICAS,
    "data_parallel_hybrid_lb": _REPLICAS,
    "data_parallel_rank": Refused(_REPLICAS.missing, _REPLICAS.fix, passing=(0,)),
    "data_parallel_rpc_port": _REPLICAS,
    "data_parallel_size": _REPLICAS,
    "data_parallel_size_local": Refused(_REPLICAS.missing, _REPLICAS.fix, passing=(1,)),
    "data_parallel_start_rank": Refused(_REPLICAS.missing, _REPLICAS.fix, passing=(0,)),
    "data_parallel_backend": _REPLICAS,
    "dbo_decode_token_threshold": _HALVES,
    "dbo_prefill_token_threshold": _HALVES,
    "decode_context_parallel_size": Refused(
        "dividing a request's KV cache over devices is not supported."
    ),
    "default_mm_loras": _LORA,
    "disable_chunked_mm_input": _MEDIA,
    "enable_dbo": _HALVES,
    "enable_eplb": _EXPERTS,
    "enable_expert_parallel": _EXPERTS,
    "enable_lora": _LORA,
    "enable_lora_bias": _LORA,
    "enable_prompt_embeds": Refused("prompts can only be text or token ids so far."),
    "eplb_config": Refused(
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
    "io_processor_plugin": Refused(
        "plugins that convert other data into prompts are not supported."
    ),
    "kv_events_config": _TRANSFER,
    "kv_sharing_fast_prefill": Refused(
        "models whose layers share a KV cache are not supported yet."
    ),
    "kv_transfer_config": _TRANSFER,
    "limit_mm_per_prompt": Refused(
        _MEDIA.missing, passing_items=(("audio", 0), ("image", 0), ("video", 0))
    ),
    "logits_processor_pattern": Refused(
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
    "mm_processor_cache_gb": Refused(_MEDIA.missing, passing=(0.0,)),
    "mm_processor_cache_type": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "mm_shm_cache_max_object_size_mb": _MEDIA,
    "override_attention_dtype": Refused("attention computes in the type of --dtype."),
    "pipeline_parallel_size": Refused("pipeline parallelism is not supported yet."),
    "pooler_config": Refused("this engine generates text; pooling models are not supported yet."),
    "ray_workers_use_nsight": Refused("Ray is not supported."),
    "tensor_parallel_size": Refused("tensor parallelism is not supported yet.", "use 1."),
    "trust_remote_code": Refused(
        "dovetail never runs code that comes with a checkpoint.",
        "leave the flag out; give the architecture as a model plugin (dotted path).",
    ),
    "video_pruning_rate": _MEDIA,
    "worker_extension_cls": Refused(
        "extending the worker class is not supported; choose a worker plugin with --worker-cls.",
        "write a worker and name it with --worker-cls.",
    ),
}


def refuse(config: Config) -> None:
    """Raise ConfigError for the first refused flag whose value asks for something."""
    for name in config.origins:
        row = REFUSED.get(name)
        if row is not None and not passes(flags()[name], row, config.value(name)):
            raise ConfigError(row.missing, where=where(config, name), fix=row.fix)


def passes(flag: Flag, row: Refused, value: Any) -> bool:
    """Return whether a value asks for nothing: null, nothing at all, the default, or as named."""
    asks_nothing = value is None or value == flag.default or value in ((), "")
    if isinstance(value, Mapping):
        asks_nothing = all(item in row.passing_items for item in value.items())
    return asks_nothing or any(value == other for other in row.passing)


def where(config: Config, name: str) -> str:
    """Return the flag with the file or variable in which it was set, for an error."""
    origin = config.origins.get(name, "command line")
    spelling = flags()[name].spelling
    return spelling if origin in ("command line", "call") else f"{spelling} (from {origin})"
