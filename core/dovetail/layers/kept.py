"""Keeper: a layer that keeps something of the tokens before.

The runner finds such layers by walking the model; what they keep lies in the forward context under
their names.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import CachedLayer


class Keeper(nn.Module):
    """A layer with something in the cache. `name` is unique in the model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @abstractmethod
    def kept(self, run: RunSpec) -> CachedLayer | None:
        """Return what this rank keeps of a row; None where it is nothing."""


def kept_layers(model: nn.Module, run: RunSpec) -> list[CachedLayer]:
    """Return what a rank's layers keep, in the order in which they were built."""
    found = (module.kept(run) for module in model.modules() if isinstance(module, Keeper))
    return [layer for layer in found if layer is not None]
