"""Activation functions by the names that checkpoints use, plain and gated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.quantization import Gate, NamedActivation
from dovetail.layers.native import fused_kernel
from dovetail.layers.opaque import is_traced
from dovetail_kernels.gated_activation import OP

Activation = Callable[[torch.Tensor], torch.Tensor]


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by its tanh approximation. Source: Hendrycks and Gimpel, 2016, section 2."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0) squared."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu_squared,
    "tanh": torch.tanh,
}


KERNEL_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
"""The `dovetail_kernels` name of activations that its products can apply."""
OAI_ALPHA = 1.702
"""The alpha for which expert kernels have the gate of gpt-oss."""


def gate(name: str, context: BuildContext | None = None) -> Gate:
    """Return the activation of a gated layer. Raises: ConfigError if unknown.

    With a context, uses the kernel that fuses both halves, if there is one.
    """
    known = KERNEL_NAMES.get(name, "")
    run = fused_kernel(OP, context) if known and context is not None else None
    act = activation(name)
    halves = None if run is None else partial(_halves, partial(run, activation=known), act)
    return Gate(name=known, function=act, halves=halves)


def no_gate(name: str) -> Gate:
    """Return the activation of a layer without a gate, applied to its whole product.
    Raises: ConfigError if unknown"""
    act = activation(name)
    return Gate(name=KERNEL_NAMES.get(name, ""), function=act, halves=act)


def named_activation(name: str) -> NamedActivation:
    """Return the function that a config calls `name`, with its kernel name. Raises: ConfigError if
    unknown"""
    return NamedActivation(name=KERNEL_NAMES.get(name, ""), function=activation(name))


def activation(name: str) -> Activation:
    """Return the function a config calls `name`. Raises: ConfigError if unknown."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f'activation "{name}" is not built in.',
            where="config.json",
            fix=f"known: {', '.join(sorted(ACTIVATIONS))}",
        )
    return ACTIVATIONS[name]


def _halves(run: Activation, act: Activation, gate_up: torch.Tensor) -> torch.Tensor:
    return gated(act, gate_up) if is_traced() else run(gate_up)


def gated(act: Activation, gate_up: torch.Tensor) -> torch.Tensor:
    """Return act(gate) * up. Shapes: gate_up [T, 2F] (gate first) -> [T, F]"""
    gate, up = gate_up.chunk(2, dim=-1)
    return act(gate) * up


def clamped_gate(alpha: float, limit: float) -> Gate:
    """Return the gate g * sigmoid(alpha g) * (up + 1) of clamped halves: g to at most `limit`, up
    to [-limit, limit]. Source: the gpt-oss model card, 2025"""

    def act(gate: torch.Tensor) -> torch.Tensor:
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(alpha * gate)

    def halves(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return act(gate) * (up.clamp(-limit, limit) + 1)

    known = "swiglu_oai" if alpha == OAI_ALPHA else ""
    return Gate(name="", function=act, halves=halves, of_experts=known, limit=limit)
