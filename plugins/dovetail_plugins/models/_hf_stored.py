"""Blocks of GGUF files for modules that are transformers' own, as tables and heads are: these hold
plain numbers, so that the blocks are dequantized while they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from dovetail.layers.linear.placement import WeightHolder
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.types import QUANTIZED

Tensors = Iterable[tuple[str, torch.Tensor]]


class PlainTables:
    """Dequantizes what plain modules below `module` get; other tensors pass. `path_of` returns a
    tensor's name in the module, `then` converts all tensors afterwards."""

    def __init__(
        self,
        module: nn.Module,
        path_of: Callable[[str], str],
        then: Callable[[Tensors], Iterator[tuple[str, torch.Tensor]]] | None,
    ) -> None:
        self._modules = dict(module.named_modules())
        self._path_of, self._then = path_of, then

    def __call__(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors as the modules hold them."""
        plain = (self._plain(name, tensor) for name, tensor in tensors)
        yield from plain if self._then is None else self._then(plain)

    def _plain(self, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        owner, _, leaf = name.rpartition(".")
        if leaf not in QUANTIZED:
            return name, tensor
        found = self._modules.get(self._path_of(f"{owner}.").removesuffix("."))
        if found is None or isinstance(found, WeightHolder):
            return name, tensor
        return f"{owner}.weight", dequantize(leaf, tensor)
