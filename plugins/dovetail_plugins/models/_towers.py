"""The blocks of transformers' encoders of images and sound, built of dovetail's layers.

A block keeps transformers' own control flow; its matrices, norms and patches become dovetail's, so
that quantization, native kernels and ranks apply. Activations and gates are fused into the product
before them. In a divided encoder, each rank has some heads and a part of the MLP.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from transformers import activations

from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import Linear
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.patches import Patches, is_of_patches
from dovetail_plugins.models._hf_swap import store_buffers, swap_layers
from dovetail_plugins.models._tower_layers import (
    TowerActivated,
    TowerColumns,
    TowerGatedMLP,
    TowerQKV,
    TowerRows,
    tower_norm,
)

ACTIVATIONS: dict[type[nn.Module], str] = {
    activations.QuickGELUActivation: "quick_gelu",
    activations.GELUActivation: "gelu",
    activations.GELUTanh: "gelu_pytorch_tanh",
    activations.SiLUActivation: "silu",
}
"""Activations of transformers that a product of ours can end in."""
MLP_NAMES = (("fc1", "fc2"), ("linear_fc1", "linear_fc2"))
GATED = ("gate_proj", "up_proj", "down_proj")
ACT_NAMES = ("activation_fn", "act_fn", "act")
QKV = ("q_proj", "k_proj", "v_proj")
OUT_NAMES = ("out_proj", "o_proj", "projection_layer", "proj")


def exchange(
    context: BuildContext,
    encoder: nn.Module,
    prefix: str,
    config: Any,
    exempt: Container[nn.Module] = (),
) -> None:
    """Replace an encoder's linear layers with dovetail's, except those in `exempt`. `prefix` is its
    path in the checkpoint. Mutates: encoder"""
    swap_blocks(context, encoder, prefix, exempt)
    swap_layers(replace(context, rank=RankSpec()), encoder, prefix, exempt)  # whole on each rank
    swap_rest(context, encoder, prefix, exempt)
    skip_unseen(encoder, config)
    store_buffers(encoder)
    for layer in encoder.modules():
        if isinstance(layer, Linear):
            layer.no_adapters = "it is of the encoder of media, whose results all rows share"


def swap_blocks(
    context: BuildContext, trunk: nn.Module, prefix: str, exempt: Container[nn.Module] = ()
) -> None:
    """Swap the matrices of all attention and feed-forward blocks under `trunk`, except blocks with
    a module in `exempt`.

    `prefix` is the trunk's path in the checkpoint. Mutates: trunk
    """
    for path, module in list(trunk.named_modules()):
        name = f"{prefix}{path}"
        if any(child in exempt for child in module.children()):
            continue
        _swap_attention(context, module, name)
        gated = _gated_mlp(context, module, name)
        if gated is None:
            _swap_mlp(context, module, name)
        else:
            trunk.set_submodule(path, gated)


def swap_rest(
    context: BuildContext, trunk: nn.Module, prefix: str, exempt: Container[nn.Module] = ()
) -> None:
    """Swap norms and patch convolutions, except those in `exempt`, and convolutions in lists: code
    that walks a list may ask for their class. Mutates: trunk"""
    for path, module in list(trunk.named_modules()):
        if module in exempt:
            continue
        norm = tower_norm(context, module)
        if norm is not None:
            trunk.set_submodule(path, norm)
        elif is_of_patches(module) and not _is_in_list(trunk, path):
            trunk.set_submodule(path, Patches(context, f"{prefix}{path}", module))


def _is_in_list(trunk: nn.Module, path: str) -> bool:
    return isinstance(trunk.get_submodule(path.rpartition(".")[0]), nn.ModuleList)


def skip_unseen(encoder: nn.Module, config: Any) -> None:
    """Turn an image encoder's blocks after the last used output into no-ops. Mutates: encoder"""
    taken = getattr(config, "vision_feature_layer", None)
    count = getattr(getattr(config, "vision_config", None), "num_hidden_layers", None)
    if taken is None or count is None:
        return
    places = [taken] if isinstance(taken, int) else taken
    last = max(place if place >= 0 else count + 1 + place for place in places)
    for path, blocks in encoder.named_modules():
        is_tower = path.startswith("vision_tower.") and isinstance(blocks, nn.ModuleList)
        unseen = list(blocks.children())[last:] if is_tower else []
        for block in unseen if last + len(unseen) == count else []:
            vars(block)["forward"] = _as_it_came  # a hook on its class still sees it


def _as_it_came(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return hidden


def _gated_mlp(context: BuildContext, module: nn.Module, name: str) -> TowerGatedMLP | None:
    """Return a gated feed-forward block as one of ours, None if it is another kind of block, or its
    activation or biases are unsupported."""
    act = _act_of(module)
    if act is None or set(module._modules) != {*GATED, act} or not _are_linear(module, GATED):
        return None
    gate, up, down = (cast(nn.Linear, module.get_submodule(one)) for one in GATED)
    known = ACTIVATIONS.get(type(module.get_submodule(act)))
    is_alike = (gate.bias is None) == (up.bias is None)
    if known is None or not is_alike or gate.out_features != up.out_features:
        return None
    where = _where(context, gate.out_features)
    return TowerGatedMLP(where, name, gate, down, act=known)


def _swap_mlp(context: BuildContext, module: nn.Module, name: str) -> None:
    """Swap a feed-forward block's matrices. Mutates: module"""
    if _are_linear(module, GATED):
        where = _where(context, _outputs(module, "gate_proj"))
        for one in ("gate_proj", "up_proj"):
            _swap(where, module, name, one, TowerColumns)
        _swap(where, module, name, "down_proj", TowerRows)
        return
    pair, act = next((p for p in MLP_NAMES if _are_linear(module, p)), None), _act_of(module)
    if pair is None or act is None:
        return
    where = _where(context, _outputs(module, pair[0]))
    known = ACTIVATIONS.get(type(module.get_submodule(act)))
    if known is None or _uses(module, act) != 1:
        _swap(where, module, name, pair[0], TowerColumns)
    else:
        _swap(where, module, name, pair[0], TowerActivated, act=known)
        setattr(module, act, nn.Identity())
    _swap(where, module, name, pair[1], TowerRows)


def _swap_attention(context: BuildContext, module: nn.Module, name: str) -> None:
    """Swap an attention block's matrices, and give it this rank's heads. Mutates: module"""
    facts: Any = module
    out = next((one for one in OUT_NAMES if _is_linear(module, one)), None)
    heads = getattr(facts, "num_heads", None)
    is_apart = _are_linear(module, QKV)
    is_joined = out is not None and _is_linear(module, "qkv") and _is_in_thirds(module, out)
    if out is None or not isinstance(heads, int) or not (is_apart or is_joined):
        return
    norms = [module._modules.get(one) for one in ("q_norm", "k_norm")]
    is_plain = getattr(facts, "num_key_value_heads", heads) == heads
    is_divisible = is_plain and all(norm is None or isinstance(norm, nn.Identity) for norm in norms)
    where = _where(context, heads if is_divisible else 1)
    if is_apart:
        for one in QKV:
            _swap(where, module, name, one, TowerColumns)
    else:
        whole: Any = module.get_submodule("qkv")
        parts = dict.fromkeys(("q", "k", "v"), whole.out_features // 3)
        module.set_submodule(
            "qkv",
            TowerQKV(where, f"{name}.qkv", whole.in_features, parts, bias=whole.bias is not None),
        )
    _swap(where, module, name, out, TowerRows)
    size = tensor_group(where.rank).size
    facts.num_heads = heads // size
    if size > 1 and "embed_dim" in vars(module):  # the width that some give to all heads together
        facts.embed_dim //= size
    if is_plain and "num_key_value_heads" in vars(module):
        facts.num_key_value_heads = facts.num_heads


def _is_in_thirds(module: nn.Module, out: str) -> bool:
    """Return whether queries, keys and values have the same size in their common matrix."""
    whole: Any = module.get_submodule("qkv")
    ends: Any = module.get_submodule(out)
    return bool(whole.out_features == 3 * ends.in_features)


def _where(context: BuildContext, count: int) -> BuildContext:
    """Return the context of a block with `count` equal parts: whole on each rank if the encoder is
    not divided or the parts cannot be."""
    is_divided = context.divides_encoders and count % context.rank.tensor_size == 0
    return context if is_divided else replace(context, rank=RankSpec())


def _outputs(module: nn.Module, name: str) -> int:
    """Return the number of outputs of a matrix."""
    found = module.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found.out_features


def _act_of(module: nn.Module) -> str | None:
    """Return the name of a block's activation, None if it has none."""
    return next((name for name in ACT_NAMES if name in module._modules), None)


def _uses(module: nn.Module, name: str) -> int:
    """Return how often the code of a module's forward reads a child: some apply an activation after
    their last matrix, too (Muse Glimmer)."""
    code = dis.get_instructions(inspect.unwrap(type(module).forward))
    return sum(one.argval == name for one in code)


def _are_linear(module: nn.Module, names: Iterable[str]) -> bool:
    return all(_is_linear(module, name) for name in names)


def _is_linear(module: nn.Module, name: str) -> bool:
    return type(module._modules.get(name)) is nn.Linear


def _swap(
    context: BuildContext,
    module: nn.Module,
    name: str,
    child: str,
    matrix_class: type[Any],
    **more: Any,
) -> None:
    """Swap a matrix. Mutates: module"""
    old: Any = module.get_submodule(child)
    new = matrix_class(
        context,
        f"{name}.{child}",
        old.in_features,
        old.out_features,
        bias=old.bias is not None,
        **more,
    )
    module.set_submodule(child, new)
