"""EitherMethod: shared by methods that read quantized checkpoints or quantize others while they
load. Imports no torch.

config.json decides between the two: with a quantization_config the checkpoint is quantized.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.quantization import LinearMethod, LinearSpec, stored_method
from dovetail_plugins.layers.stored.checkpoint_method import ROUTERS, StoredMethod
from dovetail_plugins.layers.stored.rounding import ActivationOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipOptions(ActivationOptions):
    """Options of methods that quantize while loading."""

    skip: tuple[str, ...] = field(
        default=("lm_head",),
        metadata={"help": "parts of layer names that stay in full precision while loading"},
    )


class EitherMethod(StoredMethod):
    """Stored layers as StoredMethod has them; others but routers and skipped ones by `quantized`.

    The options have `skip`.
    """

    capabilities = frozenset({"from_checkpoint", "while_loading"})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint is not of this method. `query` is a ModelSpec or None."""
        method = stored_method(query)
        if method is None or method in cls.stored_as:
            return []
        return [f"the checkpoint is stored as {method}"]

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the method of a layer."""
        from dovetail_plugins.layers.stored.matrix_linear import plain_linear

        if self.is_stored:
            return super().linear(spec)
        if self.is_skipped(spec.name):
            return plain_linear(spec, activations=self.activations)
        return self.quantized(spec)

    def is_skipped(self, name: str) -> bool:
        """Return whether a layer stays in full precision while a checkpoint loads."""
        skipped: tuple[str, ...] = self.options.skip
        return name.endswith(ROUTERS) or any(part in name for part in skipped)

    @property
    def is_stored(self) -> bool:
        """Return whether the checkpoint holds quantized weights."""
        return bool(self.config)

    @abstractmethod
    def quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method of a layer whose full-precision weight is quantized while it loads."""
