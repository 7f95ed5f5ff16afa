"""fbgemm_fp8 checkpoints: float8 e4m3 weights with a scale per output.

Per layer `weight` e4m3 [O, I] and `weight_scale` [O, 1]; layers in `modules_to_not_convert` are
left alone. `activation_scale_ub` bounds activations that are made float8, which is not done here:
they stay float. Source: transformers' FbgemmFp8Config, and Llama 3.1's FP8 checkpoints
(https://huggingface.co/meta-llama/Llama-3.1-405B-FP8).
"""

from __future__ import annotations

from dovetail.interfaces.headers import Kept, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.checkpoint_method import Layout, StoredMethod
from dovetail_plugins.quantization._float8_layouts import OutputScale
from dovetail_plugins.quantization._kept import float8_kept


class FbgemmFp8(StoredMethod):
    """float8 e4m3 weights per output, float activations."""

    info = Info(
        summary="fbgemm_fp8 checkpoints: float8 weights, a scale per output; float activations",
        source="https://huggingface.co/docs/transformers/quantization/fbgemm_fp8",
    )
    stored_as = ("fbgemm_fp8",)
    ignored = (".input_scale_ub", ".input_scale")

    def layout(self, spec: LinearSpec) -> Layout:
        """Return the layout of every layer."""
        return OutputScale()

    def kept(self, layer: StoredLayer, *, packs: bool) -> Kept | None:
        """Return what a layer in float8 becomes."""
        return float8_kept(layer)
