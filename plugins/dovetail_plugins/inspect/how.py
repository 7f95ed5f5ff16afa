"""How a model stores its weights in memory, and multiplies by them, on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantization import QuantMethod
from dovetail_plugins.inspect.stored_layers import EMBEDDING, HEAD
from dovetail_plugins.layers.stored.rounding import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a model stores its weights and multiplies by them.

    `panel_outputs`: the native library packs matrices with outputs padded to a multiple of this; 0:
    nothing is packed. `method` None: nothing is known of quantized layers; `asked` is its option
    `activations`. `is_tied`: the head is the token table. `is_own`: a model plugin builds all
    layers; otherwise head and tables are transformers' own. `isa` is the native library's
    instruction set, "" without one.
    """

    model: ModelSpec
    method: QuantMethod | None
    panel_outputs: int
    is_tied: bool
    is_own: bool = True
    is_cpu: bool = True
    isa: str = ""
    asked: str = AUTO

    @property
    def packs(self) -> bool:
        """Return whether matrices are packed."""
        return self.panel_outputs > 0

    def matrix_dtype(self, purpose: str) -> str:
        """Return the type of full-precision matrices. A table that is not the head keeps its type
        even if nothing is packed."""
        if purpose in (EMBEDDING, HEAD) and not self.is_own:
            return self.model.dtype
        is_kept = self.packs or (purpose == EMBEDDING and not self.is_tied)
        return (self.model.weight_dtype if is_kept else "") or self.model.dtype
