"""fp8: weights in float8 e4m3, with a scale per block of 128 x 128 or one per matrix.

`weight` e4m3 [O, I] and, by blocks, `weight_scale_inv` [O / 128, I / 128] rounded up (DeepSeek-V3's
layout), or `weight_scale` [] (AutoFP8's). A weight is value * scale in both. Source:
https://huggingface.co/deepseek-ai/DeepSeek-V3, https://github.com/neuralmagic/AutoFP8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Inputs, Quantized, Quantizer

if TYPE_CHECKING:
    import torch

BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Options:
    """How fine the scales are."""

    scale: str = field(
        default="block",
        metadata={
            "choices": ("block", "matrix"),
            "help": "block: one for 128 x 128 weights; matrix: one for each matrix",
        },
    )


class Fp8(Quantizer):
    """float8 e4m3, to nearest."""

    info = Info(
        summary="float8 (e4m3), rounded to nearest, one scale per block of 128 x 128 or per matrix",
        source="https://arxiv.org/abs/2209.05433",
    )
    Options = Fp8Options

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: in one that is several fused, readers begin blocks anew."""
        sizes = _parts(name.rpartition(".")[2], shape[0], self.task.model)
        is_even = self.options.scale == "matrix" or not any(size % BLOCK for size in sizes)
        return "" if is_even else f"its fused parts are not multiples of {BLOCK}"

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix rounded to nearest. Shapes: weight [O, I]"""
        import torch

        from dovetail_kernels.gemm.weight import FLOAT8_LARGEST

        if self.options.scale == "matrix":
            scales = (weight.abs().max() / FLOAT8_LARGEST).clamp(
                min=torch.finfo(torch.float32).tiny
            )
            spread, leaf = scales, "weight_scale"
        else:
            scales = block_scales(weight)
            spread = scales.repeat_interleave(BLOCK, 0)[: len(weight)]
            spread = spread.repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]
            leaf = "weight_scale_inv"
        values = (weight / spread).clamp(-FLOAT8_LARGEST, FLOAT8_LARGEST).to(torch.float8_e4m3fn)
        return Quantized(tensors={"weight": values, leaf: scales}, meant=values.float() * spread)

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config."""
        blocks = {"weight_block_size": [BLOCK, BLOCK]} if self.options.scale == "block" else {}
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "modules_to_not_convert": list(whole),
            **blocks,
        }


def _parts(leaf: str, outputs: int, model: ModelSpec) -> tuple[int, ...]:
    """Return the outputs of the matrices that a stored one fuses; nothing if it is one."""
    if leaf == "c_attn":
        return (outputs // 3,) * 3
    if leaf == "gate_up_proj":
        return (outputs // 2,) * 2
    if leaf == "qkv_proj":
        keys = model.num_kv_heads * model.head_size
        return (outputs - 2 * keys, keys, keys)
    return ()


def block_scales(weight: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of every block over that of e4m3, blocks at the ends cut short.

    Shapes: weight [O, I] -> [O / 128, I / 128] rounded up
    """
    import torch

    from dovetail_kernels.gemm.weight import FLOAT8_LARGEST

    rows = [part.abs().amax(0) for part in weight.split(BLOCK)]
    blocks = [part.amax(1) for part in torch.stack(rows).split(BLOCK, dim=1)]
    return (torch.stack(blocks, 1) / FLOAT8_LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
