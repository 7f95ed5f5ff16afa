"""CacheConfig: size and sharing of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV cache."""

    block_size: int | None = flag(
        None,
        kind="block_size",
        ge=1,
        unit="tokens",
        words={"auto": None},
        help="tokens per cache block",
        default_note="16",
    )
    kv_policy: str | None = flag(
        None,
        kind="kv_policy",
        help="layout of the KV cache and account of its blocks",
        default_note="the device's own, or paged",
    )
    gpu_memory_utilization: float = flag(
        0.9,
        ge=0.01,
        le=1.0,
        aliases=("--device-memory-utilization",),
        help="fraction of the device's memory that this engine may use; without this flag an "
        "engine on a CPU uses at most 4 GiB",
    )
    kv_cache_memory_bytes: int | None = flag(
        None, ge=1, unit="bytes", help="exact size of the KV cache on each device"
    )
    num_gpu_blocks_override: int | None = flag(
        None, ge=1, unit="blocks", help="exact number of cache blocks, mostly for tests"
    )
    enable_prefix_caching: bool = flag(
        True, help="reuse the KV cache of earlier prompts that begin with the same tokens"
    )
    prefix_caching_hash_algo: str = flag(
        "sha256",
        kind="hash_algorithm",
        help="keyed hash function with which equal prefixes are found",
    )
    kv_cache_dtype: str = flag("auto", kind="kv_cache_dtype", help="data type of the KV cache")
    cpu_offload_gb: float = flag(
        0.0,
        ge=0,
        unit="GiB",
        help="size of the weights that stay in host memory and are copied to the device in "
        "every step, in whole layers of the model; on a CPU it changes nothing",
    )
    swap_space: float = flag(
        4.0,
        ge=0,
        unit="GiB",
        help="host memory for the KV cache of preempted requests, allocated when needed; with 0 "
        "preempted requests are recomputed",
        default_note="4, and 0 on a CPU, whose cache is host memory itself",
    )
    calculate_kv_scales: bool = flag(
        False, help="measure the scales of an fp8 KV cache at the start, on random tokens"
    )
    quantization_param_path: str | None = flag(
        None,
        metavar="FILE",
        help="JSON file with the scales of an fp8 KV cache, used instead of the checkpoint's",
    )
    mamba_cache_dtype: str = flag(
        "auto",
        kind="mamba_cache_dtype",
        help="data type of the states of Mamba and other recurrent layers",
    )
    mamba_ssm_cache_dtype: str = flag(
        "auto",
        kind="mamba_cache_dtype",
        help="data type of the recurrent (SSM) state alone; auto is that of --mamba-cache-dtype",
    )
    kv_sharing_fast_prefill: bool = flag(
        False,
        help="compute prompt tokens after which nothing is drawn only as far as there are layers "
        "with a KV cache: those behind that read another layer's need them not",
    )
