"""Comparison: whether an engine on another machine was started with the same flags as the server.

Answers must not depend on the engine that computes them, and the server prepares requests by its
own settings. Machine settings (devices, cores, memory) may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec

COMPARED = {
    "num_engines": "--data-parallel-size",
    "run.model.path": "",
    "run.model.dtype": "--dtype",
    "run.model.weight_dtype": "--dtype",
    "run.model": "--model",
    "run.kv_dtype": "--kv-cache-dtype",
    "run.kv_scales": "--kv-cache-dtype",
    "run.kv_steps": "--calculate-kv-scales",
    "run.seed": "--seed",
    "run.model_plugin": "--model-impl",
    "run.load_format": "--load-format",
    "run.quantization": "--quantization",
    "run.logits_processors": "--logits-processors",
    "run.worker_extension": "--worker-extension-cls",
    "run.logprobs_stage": "--logprobs-mode",
    "run.profile.folder_path": "",
    "run.profile.engine": "",
    "run.profile": "--profiler-config",
    "run.logprobs_scale": "--logprobs-mode",
    "run.pooling.projections": "",
    "run.pooling": "--pooler-config",
    "run.adapters.dtype": "--lora-dtype",
    "run.adapters.max_added_tokens": "--lora-extra-vocab-size",
    "run.adapters.tokenizer": "--tokenizer-mode",
    "run.adapters": "--max-loras",
    "adapters": "--lora-modules",
    "run.conv_state_dtype": "--mamba-cache-dtype",
    "run.state_dtype": "--mamba-ssm-cache-dtype",
    "run.leaves_out_tokens": "--kv-sharing-fast-prefill",
    "run.attention_dtype": "--override-attention-dtype",
    "run.acceptance": "--speculative-config",
    "run.drafts.model.path": "",
    "run.drafts.model.dtype": "",
    "run.drafts.model.weight_dtype": "",
    "run.drafts.attention": "",
    "run.drafts": "--speculative-config",
    "run.structured_output.tokenizer_path": "",
    "run.structured_output.compile_limit_s": "",
    "run.structured_output.compile_memory_bytes": "",
    "run.structured_output.cache_bytes": "",
    "run.structured_output": "--structured-outputs-config",
    "cache.block_tokens": "--block-size",
    "cache.uses_prefix_cache": "--enable-prefix-caching",
    "schedule.max_rows": "--max-num-seqs",
    "schedule.max_model_tokens": "--max-model-len",
    "schedule.keeps_parts_whole": "--disable-chunked-mm-input",
    "drafting": "--speculative-config",
    "policy": "--scheduling-policy",
    "kv_policy": "--disable-hybrid-kv-cache-manager",
    "stop_conditions": "--plugin-options",
    "can_sleep": "--enable-sleep-mode",
    "times_steps": "--collect-detailed-traces",
}
"""Path in an EngineSpec -> the flag that decides it; the longest matching prefix counts. With an
empty flag, or without an entry, the values may differ."""
OF_A_DEVICE = (
    *("run.model.dtype", "run.model.weight_dtype", "run.kv_dtype", "run.conv_state_dtype"),
    "kv_policy",
)
"""Paths that depend on the device. A server that runs no engine does not know them."""


def difference(
    ours: EngineSpec, theirs: bytes, who: str, *, knows_device: bool
) -> ConfigError | None:
    """Return the first forbidden difference between an engine's encoded EngineSpec and ours.

    `knows_device`: `ours` already contains what depends on the engines' device (see OF_A_DEVICE).
    """
    known, other_spec = msgspec.to_builtins(ours), msgspec.msgpack.decode(theirs)
    for place, mine, other in differences(known, other_spec):
        flag = _flag_of(place)
        if flag and (knows_device or not place.startswith(OF_A_DEVICE)):
            return ConfigError(
                f"{who} was started with other flags: {place} is {other!r} there and {mine!r} at "
                "the server.",
                where=flag,
                fix="give the server and the engines of every machine the same model and flags.",
            )
    return None


def adopted(ours: EngineSpec, theirs: bytes) -> EngineSpec:
    """Return our spec with the device-dependent values of an engine's spec (dtypes, KV policy)."""
    there = msgspec.msgpack.decode(theirs)
    run = msgspec.to_builtins(ours.run)
    run["kv_dtype"] = there["run"]["kv_dtype"]
    run["model"] |= {name: there["run"]["model"][name] for name in ("dtype", "weight_dtype")}
    whole = msgspec.to_builtins(ours) | {"run": run, "kv_policy": there["kv_policy"]}
    return msgspec.convert(whole, EngineSpec)


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, ours, theirs) for each difference between two values of builtin types."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in {**ours, **theirs}:
            below = f"{place}.{key}" if place else str(key)
            yield from differences(ours.get(key), theirs.get(key), below)
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        for number, (mine, other) in enumerate(zip_longest(ours, theirs)):
            yield from differences(mine, other, f"{place}.{number}")
    elif ours != theirs:
        yield place, ours, theirs


def _flag_of(place: str) -> str:
    """Return the flag that decides this path, or "" if the values may differ."""
    while place:
        if place in COMPARED:
            return COMPARED[place]
        place = place.rpartition(".")[0]
    return ""
