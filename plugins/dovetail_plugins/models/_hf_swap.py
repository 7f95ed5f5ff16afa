"""Linear layers and experts of transformers' models, swapped for dovetail's.

So a quantization method sees every linear layer, and tensors of single experts find their place.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.quantization import Gate
from dovetail.layers.activation import ACTIVATIONS, clamped_gate, gate
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.linear.placement import Placement, mark_axes
from dovetail.layers.moe.experts import Experts

EXPERT_NAMES = {
    "gate_proj": ("gate_up_proj", "gate"),
    "w1": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
    "w3": ("gate_up_proj", "up"),
    "w2": ("down_proj", None),
}

EXPERT_MATRICES = ("gate_up_proj", "down_proj")
"""The parameters of a module that holds all experts of a block."""


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return the values of transformers' code as rows contiguous in memory, as kernels read them.
    Shapes: x [..., I] -> [T, I]"""
    rows = x.flatten(0, -2)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


class AnyShape(nn.Module):
    """Put before a layer of rows, has it take transformers' [1, T, I] as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., I] -> [..., O]"""
        rows: torch.Tensor = super().forward(rows_of(x))
        return rows.unflatten(0, x.shape[:-1])


class SwappedLinear(AnyShape, ReplicatedLinear):
    """A linear layer that takes any shape, and has its sizes by the names that transformers' code
    asks for."""

    @property
    def in_features(self) -> int:
        """Return the size of an input."""
        return self.full_in_size

    @property
    def out_features(self) -> int:
        """Return the size of an output."""
        return sum(part.full for part in self.parts)


class SwappedExperts(Experts):
    """Experts called the way transformers calls them."""

    def forward(  # type: ignore[override]  # transformers passes the experts first
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: x [T, E], experts and weights [T, A] -> [T, E]"""
        return super().forward(rows_of(x), weights, experts)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where tensors such as "N.gate_proj.weight" go."""
        words = leaf.split(".")
        if len(words) > 1 and words[1] in EXPERT_NAMES:
            words[1], part = EXPERT_NAMES[words[1]]
        return super().place(".".join(words), part)


def swap_layers(
    context: BuildContext, trunk: nn.Module, prefix: str, exempt: Container[nn.Module] = ()
) -> None:
    """Swap every plain linear layer and experts layer under `trunk`, except those in `exempt`.

    `prefix` is the trunk's path in the checkpoint. Mutates: trunk
    Raises: ConfigError for experts of another shape than gate, up, down.
    """
    for path, module in list(trunk.named_modules()):
        name = f"{prefix}{path}"
        if module in exempt:
            continue
        if type(module) is nn.Linear:
            swapped: nn.Module = SwappedLinear(
                context, name, module.in_features, module.out_features, bias=module.bias is not None
            )
        elif is_experts(module):
            swapped = _experts(context, name, module)
        else:
            continue
        trunk.set_submodule(path, swapped)


def is_experts(module: nn.Module) -> bool:
    """Return whether transformers keeps all experts of a block in this module."""
    return vars(module).get("_is_expert_parallel") is not None


def _experts(context: BuildContext, name: str, module: nn.Module) -> SwappedExperts:
    facts = vars(module)
    odd = [f for f in ("has_bias", "has_post_expert_norm") if facts.get(f)]
    odd += [f"no {f}" for f in ("has_gate", "is_concatenated") if not facts.get(f)]
    act = None if odd else _gate(module)
    if act is None:
        raise ConfigError(
            f"experts of the kind {type(module).__name__} are not supported"
            f" ({', '.join(odd) or 'their gate differs'}).",
            where=name,
        )
    count, doubled, size = module.get_parameter("gate_up_proj").shape
    if is_inputs_first(module):
        doubled, size = size, doubled
    return SwappedExperts(context, name, num_experts=count, size=size, inner=doubled // 2, act=act)


def is_inputs_first(module: nn.Module) -> bool:
    """Return whether experts' matrices are stored [X, I, O]."""
    return is_experts(module) and bool(vars(module).get("is_transposed"))


def _gate(module: Any) -> str | Gate | None:
    """Return the gate that computes what that of transformers' experts does, None for another."""
    facts = vars(module)
    acts = (getattr(facts["config"], "hidden_act", None), "silu")
    gates: dict[str | Gate, Gate] = {act: gate(act) for act in acts if act in ACTIVATIONS}
    if "swiglu_alpha" in facts:
        clamped = clamped_gate(float(facts["swiglu_alpha"]), float(facts["swiglu_limit"]))
        gates[clamped] = clamped
    halves = torch.linspace(-9, 9, 22, device="cpu").tile(2, 1)
    halves = torch.cat([halves, halves.flip(1)])
    with torch.inference_mode():
        wanted = module._apply_gate(halves)
        same = (name for name, one in gates.items() if torch.equal(one.joined(halves), wanted))
    return next(same, None)


def store_buffers(module: nn.Module) -> None:
    """Make parameters of the buffers that a checkpoint stores, so that they are loaded like all
    others; one that it lacks keeps the value that transformers gives it. Mutates: module"""
    for owner in module.modules():
        for name, buffer in list(owner._buffers.items()):
            if buffer is None or name in owner._non_persistent_buffers_set:
                continue
            del owner._buffers[name]
            stored = nn.Parameter(buffer, requires_grad=False)
            owner.register_parameter(
                name, mark_axes(stored, output=None, input=None, is_optional=True)
            )
