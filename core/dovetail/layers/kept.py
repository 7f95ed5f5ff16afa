"""CachingLayer: a layer that caches data of earlier tokens.

The runner finds such layers by walking the model; the forward context has their caches by name.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from dovetail import moved
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer

__getattr__ = moved.attributes(__name__)


class CachingLayer(nn.Module):
    """A layer with a cache. `name` is unique in the model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @abstractmethod
    def kept(self, run: RunSpec) -> CachedLayer | None:
        """Return what this rank caches of a row; None if nothing."""


def kept_layers(model: nn.Module, run: RunSpec) -> list[CachedLayer]:
    """Return what a rank's layers cache, in construction order."""
    found = (module.kept(run) for module in model.modules() if isinstance(module, CachingLayer))
    return [layer for layer in found if layer is not None]
