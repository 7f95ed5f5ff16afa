"""fbgemm_fp8 checkpoints: float8 e4m3 weights with a scale per output.

Per layer `weight` e4m3 [O, I] and `weight_scale` [O, 1]; layers in `modules_to_not_convert` are not
quantized. On a GPU that multiplies two 8-bit floats activations become e4m3, a scale a row;
`activation_scale_ub`, beyond which such a scale would cut its row off, is not used.
Source: transformers' FbgemmFp8Config, and Llama 3.1's FP8 checkpoints
(https://huggingface.co/meta-llama/Llama-3.1-405B-FP8).
"""

from __future__ import annotations

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod
from dovetail_plugins.layers.stored.rounding import FLOAT8
from dovetail_plugins.quantization._estimates import float8_estimate
from dovetail_plugins.quantization._float8_layouts import OutputScale
from dovetail_plugins.quantization._float8_rounding import Float8Options, rounds


class FbgemmFp8(StoredMethod):
    """float8 e4m3 weights per output, float8 activations if a GPU supports them."""

    info = Info(
        summary="fbgemm_fp8 checkpoints: float8, a scale per output; activations too on newer GPUs",
        source="https://huggingface.co/docs/transformers/quantization/fbgemm_fp8",
    )
    Options = Float8Options
    stored_as = ("fbgemm_fp8",)
    ignored = (".input_scale_ub", ".input_scale")

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the layout of every layer."""
        return OutputScale(has_float8_activations=rounds(self.options.activations, spec))

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer in float8."""
        return float8_estimate(layer, takes=FLOAT8)
