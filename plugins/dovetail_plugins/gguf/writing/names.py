"""GGUF's names of a checkpoint's modules: the inverse of `reading/names.py`. Imports no torch."""

from __future__ import annotations

import re

from dovetail_plugins.gguf.families.family import FamilyNames

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
_LETTERS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Mixtral's own names of an expert's matrices -> the other families' names."""
_LEFT_OUT = "transformer."
"""A name prefix that some checkpoints of GPT-2 omit."""


_DRAFTS = "mtp"
"""How names of layers that draft begin, where they are not numbered after the model's own."""

_SPELLED = {
    "self_attn.query_layernorm": "self_attn.q_norm",
    "self_attn.key_layernorm": "self_attn.k_norm",
    "mlp.gate.wg": "mlp.gate",
    "mlp.moe_statics": "mlp",
}
"""Modules under a checkpoint's own names -> the names that families share."""


class WrittenNames:
    """The names of a family's modules in a model of some layers."""

    def __init__(self, layout: FamilyNames, num_layers: int) -> None:
        self._block, self._num_layers = f"{layout.blocks}.", num_layers
        self._modules = {theirs: ours for ours, theirs in layout.trunk.items()}
        self._own: dict[str, str] = {}
        for number in range(num_layers):
            block = f"{layout.blocks}.{number}"
            for ours, theirs in layout.block.items():
                self._modules[f"{block}.{theirs}"] = f"blk.{number}.{ours}"
            for ours, theirs in layout.own.items():
                self._own[f"{block}.{theirs}"] = f"blk.{number}.{ours}"

    def own(self, tensor: str) -> str | None:
        """Return GGUF's whole name of a tensor that is not called after its module there."""
        module, _, leaf = tensor.rpartition(".")
        return self._own.get(f"{_respelled(module)}.{leaf}")

    def is_draft(self, tensor: str) -> bool:
        """Return whether a tensor is of a layer behind the model's own, which drafts tokens."""
        if tensor.removeprefix("model.").startswith(_DRAFTS):
            return True
        number = tensor.removeprefix(self._block).partition(".")[0]
        return tensor.startswith(self._block) and int(number) >= self._num_layers

    def place(self, module: str) -> tuple[str, str, int | None] | None:
        """Return the module's name in the family's words, its name in GGUF and, of an expert, its
        number; None if GGUF has no name for it."""
        found, number = _expert(_respelled(module))
        found = found if found in self._modules else f"{_LEFT_OUT}{found}"
        return (found, self._modules[found], number) if found in self._modules else None


def _respelled(module: str) -> str:
    """Return a module's name as families share it."""
    found = next((own for own in _SPELLED if module.endswith(f".{own}")), None)
    return module if found is None else module.removesuffix(found) + _SPELLED[found]


def _expert(module: str) -> tuple[str, int | None]:
    """Return the name of the module for all experts, and the number of this one."""
    match = _EXPERT.fullmatch(module)
    if match is None:
        return module, None
    return f"{match[1]}.{_LETTERS.get(match[3], match[3])}", int(match[2])
