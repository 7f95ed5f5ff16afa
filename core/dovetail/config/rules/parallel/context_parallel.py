"""Context parallelism: how many ranks divide a request's KV cache, and whether they can.

They divide what each of them would cache otherwise: a KV head that tensor parallelism repeats on
several ranks.
"""

from __future__ import annotations

from dovetail.config.checkpoint.context_length import window_tokens
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec, RankSpec

FLAG = "--decode-context-parallel-size"


def context_size(parallel: ParallelConfig) -> int:
    """Return how many ranks divide each request's cache. Raises: ConfigError unless this number
    divides the tensor-parallel size"""
    ranks, size = parallel.tensor_parallel_size, parallel.decode_context_parallel_size
    if ranks % size:
        raise ConfigError(
            f"{size} ranks of {ranks} cannot divide a KV cache: they must be all, a half, a third "
            "and so on.",
            where=FLAG,
            fix=f"use a number that divides --tensor-parallel-size, {ranks}.",
        )
    return size


def check_context(model: ModelSpec, rank: RankSpec) -> None:
    """Raise ConfigError unless each KV head and sliding window can be divided over the ranks."""
    size = rank.context_size
    if size == 1:
        return
    copies = rank.tensor_size // model.num_kv_heads
    if not copies or copies % size:
        raise ConfigError(
            f"each of {model.num_kv_heads} KV heads is on {max(1, copies)} of {rank.tensor_size} "
            f"ranks, whose KV cache {size} ranks cannot divide.",
            where=FLAG,
            fix=f"use a number that divides {copies}, or more ranks with --tensor-parallel-size."
            if copies > 1
            else "leave it out, or use more ranks than KV heads with --tensor-parallel-size.",
        )
    window = window_tokens(model.hf_config)
    if window is not None and window % size:
        raise ConfigError(
            f"a sliding window of {window} tokens cannot be divided evenly over {size} ranks.",
            where=FLAG,
            fix=f"use a number that divides {window}, or --disable-sliding-window.",
        )
