"""dovetail's attention inside transformers' models: a probe that learns each layer, then the layer.

transformers keeps attention and mask functions in two registries, and a missing mask function means
no mask at all. The probe therefore registers both and learns from the model's own mask calls what
each layer may see; the running layer registers attention alone, gets no mask, and applies what was
learnt. Source: https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.layers.attention import Attention

PROBE, RUN = "dovetail_probe", "dovetail"
CHILD = "dovetail_attention"
UNSUPPORTED = ("position_bias", "alibi", "head_mask", "indices")
"""Arguments of attention functions that change the result and that no backend takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a mask lets queries see: everything before, or the last `window_tokens`."""

    window_tokens: int | None


class _Probing(threading.local):
    is_on = False


_probing = _Probing()


def register() -> None:
    """Make both functions known to transformers. May be called again."""
    AttentionInterface.register(PROBE, _probe_attention)
    AttentionMaskInterface.register(PROBE, _probe_mask)
    AttentionInterface.register(RUN, _run_attention)


def probe(trunk: nn.Module, device: str) -> list[Attention]:
    """Run two tokens through a trunk whose implementation is PROBE; return its attention layers.

    Every attention module has then a child of our Attention. Values computed mean nothing.
    Mutates: trunk. Raises: ConfigError when a layer asks for something no backend does.
    """
    _probing.is_on = True
    try:
        with torch.inference_mode():
            ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
            positions = torch.arange(2, device=device).unsqueeze(0)
            trunk(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        _probing.is_on = False
    layers = []
    for path, module in trunk.named_modules():
        if isinstance(module, Attention):
            module.name = path.removesuffix(f".{CHILD}")
            layers.append(module)
    return layers


def _probe_mask(
    *, mask_function: Callable[..., Any], local_size: int | None = None, **_: Any
) -> Seen:
    """Return what the mask lets queries see. Raises: ConfigError if it is no causal window."""
    reach = 3 * (local_size or 8) + 2
    keys = torch.arange(reach)
    for query in sorted({0, 1, reach // 3, reach // 2, reach - 2, reach - 1}):
        queries = torch.full_like(keys, query)
        zero = torch.zeros_like(keys)
        found = torch.as_tensor(mask_function(zero, zero, queries, keys)).expand(reach)
        first = 0 if local_size is None else query - local_size + 1
        if not torch.equal(found, (keys <= query) & (keys >= first)):
            raise ConfigError("a layer's attention mask is neither causal nor a sliding window.")
    return Seen(window_tokens=local_size)


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Give the module its Attention. Shapes: query [1, H, T, D] -> [1, T, H, D of value]"""
    _refuse(module, query, key, value, attention_mask, others)
    spec = AttentionSpec(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_size=query.shape[-1],
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window_tokens=attention_mask.window_tokens,
        soft_cap=softcap,
    )
    module.add_module(CHILD, Attention("", spec))
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None


def _refuse(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    others: dict[str, Any],
) -> None:
    """Raises: ConfigError for what a paged backend cannot do."""
    name = type(module).__name__
    if not _probing.is_on:
        raise ConfigError(f"{name} computes attention here, but did not in the trial pass at load.")
    if not isinstance(attention_mask, Seen):
        raise ConfigError(f"{name} builds its own attention mask.")
    odd = [word for word in UNSUPPORTED if others.get(word) is not None]
    if odd:
        raise ConfigError(f"{name} passes {odd[0]}, which no attention backend supports.")
    if module._modules.get(CHILD) is not None:
        raise ConfigError(f"{name} computes attention twice in one pass.")
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1]:
        raise ConfigError(f"{name} has {query.shape[1]} query heads for {key.shape[1]} kv heads.")
    if value.shape[-1] > key.shape[-1] or key.shape[2] != query.shape[2]:
        raise ConfigError(
            f"{name} stores keys and values in a shape that the KV cache cannot hold."
        )


def _run_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over the paged cache. Shapes: query [1, H, T, D] -> [1, T, H, D of value]"""
    if attention_mask is not None:
        raise ConfigError(f"{type(module).__name__} builds its own attention mask.")
    attend = module.get_submodule(CHILD)
    missing = key.shape[-1] - value.shape[-1]
    padded = F.pad(value, (0, missing)) if missing else value
    q, k, v = (x[0].transpose(0, 1).flatten(1) for x in (query, key, padded))
    out = attend(q, k, v, s_aux).unflatten(-1, (query.shape[1], -1))
    return out[..., : value.shape[-1]].unsqueeze(0), None
