"""deepspeedfp: a full-precision checkpoint becomes 6- or 8-bit floats while it loads.

8 bits are e4m3, 6 bits e3m2 (stored in e4m3, which is exact, so at 8 bits a weight), with a scale
for every `group_size` inputs of an output. config.json's quantization_config or quant_config.json
may request it; a head is not quantized. Source: DeepSpeed's FP quantizer and the files of Snowflake
Arctic (https://huggingface.co/Snowflake/snowflake-arctic-instruct).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.rounding import BFLOAT16
from dovetail_plugins.quantization._either import SkipOptions
from dovetail_plugins.quantization._estimates import made_estimate
from dovetail_plugins.quantization._while_loading import WhileLoading

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

FILE = "quant_config.json"
BITS = (6, 8)
LARGEST_E3M2 = 28.0


class DeepSpeedFp(WhileLoading):
    """6- and 8-bit floats in groups of inputs, float activations."""

    info = Info(
        summary="6- or 8-bit floats in groups, made while loading; float activations",
        source="https://github.com/deepspeedai/DeepSpeed",
    )
    Options = SkipOptions
    stored_as = ("deepspeedfp",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        config: Mapping[str, Any] = model.hf_config.get("quantization_config") or {}
        if not config:
            config = read_json(Path(model.path, FILE), is_required=False)
        where = str(Path(model.path, "config.json"))
        self.bits, self.group = int(config.get("bits", 8)), int(config.get("group_size", 512))
        if self.bits not in BITS:
            raise ConfigError(f"bits {self.bits} is not supported; 6 and 8 are.", where=where)
        if self.group < 8 or self.group % 8:
            raise ConfigError(f"group_size {self.group} is not a multiple of 8.", where=where)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a full-precision layer, in either width."""
        if self.is_skipped(layer.name):
            return None
        return made_estimate(
            layer, bits=8, group=self.group, scale_bytes=4, packs=packs, format="float8",
            takes=BFLOAT16,
        )  # fmt: skip

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method that makes a weight small floats."""
        from dovetail_kernels.gemm.weight import quantize_float8
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        quantize = quantize_float8 if self.bits == 8 else quantize_e3m2
        return ConvertedLinear(partial(quantize, group=self.group), activations=self.activations)

    def _skipped(self) -> tuple[str, ...]:
        options: Any = self.options
        return tuple(options.skip)


def quantize_e3m2(weight: torch.Tensor, *, group: int) -> Weight:
    """Return the nearest e3m2 matrix (bias 3, no infinity) in e4m3. Shapes: weight [N, K]"""
    import torch

    from dovetail_kernels.gemm.weight import Weight

    outputs, inputs = weight.shape
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(outputs, -(-inputs // group))
    for row in range(outputs):
        wide = torch.nn.functional.pad(weight[row].float(), (0, -inputs % group)).view(-1, group)
        scale = (wide.abs().amax(dim=1, keepdim=True) / LARGEST_E3M2).clamp(min=1e-12)
        near = wide / scale
        exponent = near.abs().clamp(min=2.0**-2).log2().floor().clamp(max=4)
        step = torch.exp2(exponent - 2)
        near = (near / step).round().mul(step).clamp(-LARGEST_E3M2, LARGEST_E3M2)
        values[row] = near.view(-1)[:inputs].to(torch.float8_e4m3fn)
        scales[row] = scale.squeeze(1)
    return Weight(format="float8", values=values, scales=scales, group=group)
