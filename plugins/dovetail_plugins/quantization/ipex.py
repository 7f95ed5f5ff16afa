"""ipex: the name of AWQ and GPTQ checkpoints in Intel's own libraries, which are not used here. The
checkpoint is read by the method of its original name, and multiplied by the kernels of the
available device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, QuantMethod, stored_method
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization.awq import Awq
from dovetail_plugins.quantization.gptq import Gptq

if TYPE_CHECKING:
    import torch


class Ipex(QuantMethod):
    """AWQ or GPTQ by another name."""

    info = Info(summary="AWQ and GPTQ checkpoints, the same as awq and gptq")
    Options = IntegerOptions
    capabilities = frozenset({"from_checkpoint"})
    stored_as = ("ipex", *Awq.stored_as, *Gptq.stored_as)
    ignored = (*Awq.ignored, *Gptq.ignored)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        method = Awq if stored_method(model) in Awq.stored_as else Gptq
        self.inner: QuantMethod = method(options, model)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint is none of the two. `query` is a ModelSpec or None."""
        method = stored_method(query)
        if query is None or method in cls.stored_as:
            return []
        return [f"the checkpoint is {f'stored as {method}' if method else 'not quantized'}"]

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the tensors as the checkpoint's own method has them."""
        return self.inner.checkpoint_tensors(tensors)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of the checkpoint's own method."""
        return self.inner.memory_estimate(layer, packs=packs)

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the layer's method, that of the checkpoint's own."""
        return self.inner.linear(spec)
