"""Scales of a KV cache of 8-bit floats: from a checkpoint's tensors, or given.

A layer has one for its keys and one for its values; the cache holds numbers divided by the scale.
The checkpoint's scales are filtered out of its tensors before any layer sees them, whatever the
cache's dtype.
Source: names of compressed-tensors (kv_cache_scheme: `self_attn.k_scale`, before that
`k_proj.output_scale`), modelopt (`k_proj.k_scale`) and AutoFP8 (`self_attn.kv_scale`, of both).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import SCALED_KV_DTYPES
from dovetail.interfaces.model import WeightMap
from dovetail.layers.attention.paged import Attention, StoredScale
from dovetail.layers.weights import map_name

log = logging.getLogger(__name__)

ENDINGS = {
    ".k_scale": "k",
    ".v_scale": "v",
    ".kv_scale": "kv",
    ".k_proj.output_scale": "k",
    ".v_proj.output_scale": "v",
    ".q_scale": "q",
    ".prob_scale": "prob",
}
"""Ending of a tensor's name -> what it scales. Queries and weights of the softmax stay floats."""
WITHOUT_THEM = "use --calculate-kv-scales, or --kv-cache-dtype auto."
OWN_NAMES = ("attn", "attention")
"""Checkpoint names of an inner module that does not exist here, only the attention around it."""


def divert(
    module: nn.Module, weight_map: WeightMap, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors except the scales of attention layers, which those layers store.

    Mutates: the attention layers of `module`
    """
    layers = _layers_by_path(module)
    for name, tensor in tensors:
        kind = next((k for ending, k in ENDINGS.items() if name.endswith(ending)), None)
        layer = None if kind is None else _owner(layers, weight_map, name)
        if layer is None or kind is None:
            yield name, tensor
        else:
            layer.stored_scales[kind] = StoredScale(name=name, tensor=tensor.detach().clone())


def stored_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the scales that `divert` stored, under names that it accepts."""
    for path, layer in module.named_modules():
        if isinstance(layer, Attention):
            for kind, stored in layer.stored_scales.items():
                yield f"{path}.{kind}_scale", stored.tensor


def set_scales(layers: Sequence[Attention], dtype: str, given: Sequence[float] = ()) -> None:
    """Set the scales of attention layers for a cache of `dtype`, and log their origin.

    `given` has one per layer, for both keys and values. Without it the checkpoint's own are used,
    or 1 if it has none. Mutates: layers
    Raises: ConfigError that names the tensor at fault.
    """
    if dtype not in SCALED_KV_DTYPES:
        if any(layer.stored_scales for layer in layers):
            log.info("the checkpoint has KV cache scales, which --kv-cache-dtype fp8 would use")
        return
    if given:
        assert len(given) == len(layers), "the scales were counted when they were read"
        pairs = [(scale, scale) for scale in given]
    else:
        pairs = [_own_scales(layer) for layer in layers]
    for layer, (k_scale, v_scale) in zip(layers, pairs, strict=True):
        layer.spec = replace(layer.spec, k_scale=k_scale, v_scale=v_scale)
    num_stored = sum(bool({"k", "v", "kv"} & set(layer.stored_scales)) for layer in layers)
    if given:
        log.info("KV cache of %s: scales from a file", dtype)
    elif num_stored:
        log.info("KV cache of %s: %d of %d layers have scales", dtype, num_stored, len(layers))
    else:
        log.warning(
            "KV cache of %s: the checkpoint has no scales, so 1 is used; "
            "--calculate-kv-scales would measure them",
            dtype,
        )


def tell_measured(layers: Sequence[Attention]) -> None:
    """Log the measured scales."""
    for word, scales in (
        ("keys", [layer.spec.k_scale for layer in layers]),
        ("values", [layer.spec.v_scale for layer in layers]),
    ):
        log.info("KV scales measured: %s %.4g to %.4g", word, min(scales), max(scales))


def _layers_by_path(module: nn.Module) -> dict[str, Attention]:
    """Return the attention layers by their own paths and by the paths of their parents."""
    found = {p: m for p, m in module.named_modules() if isinstance(m, Attention)}
    return {path.rpartition(".")[0]: layer for path, layer in found.items()} | found


def _owner(layers: dict[str, Attention], weight_map: WeightMap, name: str) -> Attention | None:
    """Return the layer whose keys or values a scale belongs to, or None for any other scale."""
    target = map_name(weight_map, name)
    if target is None:
        return None
    path = target.path.rpartition(".")[0]
    if path in layers:
        return layers[path]
    outer, _, last = path.rpartition(".")
    return layers.get(outer) if last.endswith("proj") or last in OWN_NAMES else None


def _own_scales(layer: Attention) -> tuple[float, float]:
    """Return a layer's key and value scale from its checkpoint."""
    stored = layer.stored_scales
    both = stored.get("kv")
    key, value = stored.get("k", both), stored.get("v", both)
    if key is None and value is not None:
        raise ConfigError(
            f"{value.name} needs a k_scale, too.",
            where="checkpoint",
            fix=WITHOUT_THEM,
        )
    if key is None:
        return 1.0, 1.0
    return _number(key), _number(value or key)


def _number(stored: StoredScale) -> float:
    """Return the scale that a tensor holds. Raises: ConfigError when it is not one valid scale."""
    values = set(stored.tensor.float().flatten().tolist())
    if len(values) > 1:
        raise ConfigError(
            f"{stored.name} holds {stored.tensor.numel()} scales; a layer has one here.",
            where="checkpoint",
            fix=WITHOUT_THEM,
        )
    scale = next(iter(values), math.nan)
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(
            f"{stored.name} is {scale:g}; a scale is a number above 0.",
            where="checkpoint",
            fix=WITHOUT_THEM,
        )
    return scale
