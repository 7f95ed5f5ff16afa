"""BitNet checkpoints: every weight is -1, 0 or 1 times a number of its matrix.

A quantization method from outside is a page: the tensors a layer is stored in, and the matrix they
mean. Per layer `weight` uint8 [O / 4, I], where bits 2i and 2i + 1 of row r are row r + i * O / 4,
plus one; `weight_scale` [1] divides the matrix, or multiplies it where the config's `linear_class`
is "autobitlinear". Inputs are made int8 with a scale a token, as the method means them.
Source: https://huggingface.co/docs/transformers/quantization/bitnet
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces import Info
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import CheckpointMethod
from dovetail_plugins.layers.stored.rounding import IntegerOptions

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

DIVIDED_BY_SCALE = {"bitlinear": True, "autobitlinear": False}
VALUES_PER_BYTE = 4


class BitNet(CheckpointMethod):
    """Three values a weight, kept as int8 with a scale per output."""

    interface_version = 2
    info = Info(
        summary="BitNet checkpoints, three values a weight (an example)",
        source="https://arxiv.org/abs/2402.17764",
    )
    Options = IntegerOptions
    stored_as = ("bitnet",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        class_name = str(self.config.get("linear_class", "bitlinear"))
        if class_name not in DIVIDED_BY_SCALE:
            raise self.refuse(f'linear_class "{class_name}" is not read.')
        if self.config.get("quantization_mode", "offline") != "offline":
            raise self.refuse("the checkpoint is quantized while it runs; its weights are plain.")
        if self.config.get("use_rms_norm", False):
            raise self.refuse("layers with a norm of their own (use_rms_norm) are not read.")
        self.is_divided = DIVIDED_BY_SCALE[class_name]

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return all tensors, packed ones as int8 [O, I]: packed rows lie a quarter of O apart, so
        that no rank and no fused part could take its share of them."""
        return ((name, unpacked(t) if is_packed(name, t) else t) for name, t in tensors)

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight, unpacked, and the scale of each part."""
        shape = (spec.out_size, spec.in_size)
        return (
            StoredTensor(name="weight", shape=shape, dtype="int8", output_axis=0, input_axis=1),
            StoredTensor(name="weight_scale", shape=(1,), dtype="float32", is_per_part=True),
        )

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix: its scale is the same for every output."""
        from dovetail_kernels.gemm.weight import Weight

        values, scale = tensors["weight"], tensors["weight_scale"]
        scale = 1 / scale if self.is_divided else scale
        scales = scale.expand(len(values)).contiguous()
        return Weight(format="int8", values=values, scales=scales, has_token_scales=True)


def is_packed(name: str, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a packed matrix."""
    return name.endswith(".weight") and str(tensor.dtype) == "torch.uint8" and tensor.dim() == 2


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Return the values -1, 0 and 1. Shapes: uint8 [O / 4, I] -> int8 [O, I]"""
    import torch

    quarters = [packed.bitwise_right_shift(2 * i).bitwise_and_(3) for i in range(VALUES_PER_BYTE)]
    return torch.cat(quarters).to(torch.int8) - 1
