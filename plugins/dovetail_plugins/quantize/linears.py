"""Rewrites transformers' blocks to have one linear layer for each matrix of the checkpoint.

transformers stores all experts of a block in two tensors, and GPT-2's matrices inputs first. Here
every matrix is an nn.Linear, so that its inputs can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from dovetail_plugins.layers.stored.layer_names import LETTERS

FUSED, DOWN = "gate_up_proj", "down_proj"
"""transformers' names of the matrices with all experts."""
MIXTURE, SPARSE_BLOCK = ".mlp.", ".block_sparse_moe."
"""transformers' name of a mixture of experts, and the name in Mixtral checkpoints."""


class Names:
    """Maps parameter names of transformers' model to the checkpoint's. `base` is the name of the
    model below its head, which some checkpoints omit."""

    def __init__(self, stored: Collection[str], base: str) -> None:
        self._stored, self._base = frozenset(stored), f"{base}."

    def __call__(self, own: str) -> str | None:
        """Return a parameter's name in the checkpoint; None if it has none."""
        spelled = (own, own.removeprefix(self._base))
        found = (name for one in spelled for name in (one, _as_mixtral(one)))
        return next((name for name in found if name in self._stored), None)


def _as_mixtral(name: str) -> str:
    name = name.replace(MIXTURE, SPARSE_BLOCK)
    for word, letter in LETTERS.items():
        name = name.replace(f".{word}.", f".{letter}.")
    return name


class Experts(nn.Module):
    """The experts of a block, each with its own linear layers.

    Called like transformers' own: with tokens, and the chosen experts and their weights per token.
    """

    def __init__(self, fused: nn.Module) -> None:
        super().__init__()
        count, outputs, inputs = fused.get_parameter(FUSED).shape
        self._gated: Callable[[torch.Tensor], torch.Tensor] = fused._apply_gate  # type: ignore[assignment]
        for number in range(count):
            self.add_module(str(number), _expert(inputs, outputs // 2))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sums. Shapes: [T, E], index and weights [T, A] -> [T, E]"""
        out = torch.zeros_like(hidden_states)
        for name, expert in self.named_children():
            tokens, places = torch.where(top_k_index == int(name))
            if not len(tokens):
                continue
            own = hidden_states[tokens]
            both = torch.cat([expert.gate_proj(own), expert.up_proj(own)], dim=-1)  # type: ignore[operator]
            output = expert.down_proj(self._gated(both))  # type: ignore[operator]
            out.index_add_(0, tokens, output * top_k_weights[tokens, places, None].to(output.dtype))
        return out


def _expert(size: int, inner: int) -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "gate_proj": _hollow(size, inner),
            "up_proj": _hollow(size, inner),
            "down_proj": _hollow(inner, size),
        }
    )


def _hollow(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Return a linear layer without weights."""
    return nn.Linear(inputs, outputs, bias=bias, device="meta").requires_grad_(False)


def make_plain(block: nn.Module, path: str, name_of: Names) -> None:
    """Give a block a linear layer for each matrix. Experts that the checkpoint stores in two
    tensors, too, stay unchanged. Mutates: block"""
    from transformers.pytorch_utils import Conv1D

    for name, module in list(block.named_modules()):
        if isinstance(module, Conv1D):
            _put(block, name, _hollow(module.nx, module.nf, bias=True))
        elif _is_fused(module) and name_of(f"{path}.{name}.{FUSED}") is None:
            _put(block, name, Experts(module))


def _is_fused(module: nn.Module) -> bool:
    """Return whether a module stores experts in two tensors, outputs first."""
    own = dict(module.named_parameters(recurse=False))
    if own.keys() != {FUSED, DOWN} or any(one.dim() != 3 for one in own.values()):
        return False
    return own[FUSED].shape[1] == 2 * own[DOWN].shape[2]


def _put(block: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a module by another. Mutates: block"""
    holder, _, leaf = name.rpartition(".")
    block.get_submodule(holder).add_module(leaf, module)
