"""OutputGate: gates the outputs of attention, by a sigmoid of numbers from the layer's input."""

from __future__ import annotations

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.opaque import is_traced
from dovetail.layers.repeated import of_tensors
from dovetail_kernels import output_gate
from dovetail_kernels.output_gate.native import OutputGate as NativeOutputGate


class OutputGate:
    """x sigmoid(gate), by a kernel if there is one. Has no parameters."""

    def __init__(self, context: BuildContext) -> None:
        is_native = runs_natively(output_gate.OP, context)
        self._run = NativeOutputGate() if is_native else fused_kernel(output_gate.OP, context)

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return x sigmoid(gate). Shapes: x, gate [T, D] -> [T, D]"""
        if self._run is None or is_traced():
            return x * gate.sigmoid()
        opened: torch.Tensor = self._run(x, gate)
        return opened


def open_heads(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return x sigmoid(gate), a gate for each head. Shapes: x [T, H D], gate [T, H] -> [T, H D]"""
    return of_tensors(_opened, x, gate)[0]


def _opened(x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor]:
    heads = x.unflatten(-1, (gate.shape[-1], -1))
    return ((heads * gate.float().sigmoid().to(x.dtype).unsqueeze(-1)).flatten(-2),)
