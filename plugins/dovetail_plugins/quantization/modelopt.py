"""ModelOpt checkpoints: FP8 (per matrix, output or block) and NVFP4, one for all layers or mixed.

`quant_algo` in config.json's quantization_config or in hf_quant_config.json: FP8: `weight` e4m3 [O,
I], `weight_scale` []. FP8_PER_CHANNEL_PER_TOKEN: `weight_scale` [O]. FP8_PB_WO: `weight_scale` [O /
128, 1, I / 128, 1]. NVFP4: `weight` uint8 [O, I / 2], two e2m1 a byte, `weight_scale` e4m3 [O, I /
16] and `weight_scale_2` [], both multiplied. MIXED_PRECISION: `quantized_layers` names each
layer's. Activations of FP8 and FP8_PER_CHANNEL_PER_TOKEN become e4m3 on a GPU that multiplies two
8-bit floats, with a scale of each row's own in place of `input_scale`; others, and those on other
devices, stay float. Source: nvidia-modelopt's export
(https://github.com/NVIDIA/TensorRT-Model-Optimizer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod, listed
from dovetail_plugins.layers.stored.layer_names import one_for_parts
from dovetail_plugins.layers.stored.names import bare
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT8
from dovetail_plugins.quantization._estimates import codes_estimate, float8_estimate
from dovetail_plugins.quantization._float8_layouts import BlockScale, OutputScale, WholeScale
from dovetail_plugins.quantization._float8_rounding import Float8Options, rounds
from dovetail_plugins.quantization.fp8 import SCALES_NOT_USED

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BLOCK = (128, 128)
GROUP = 16
MIXED = "MIXED_PRECISION"
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", MIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4:
    """4-bit floats in groups, an e4m3 scale each, and one scale for all of a matrix."""

    group: int = GROUP

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the packed weight, the groups' scales and the matrix's."""
        rows, inputs = spec.out_size, spec.in_size
        return (
            StoredTensor(name="weight", shape=(rows, inputs // 2), dtype="uint8",
                         output_axis=0, input_axis=1),
            StoredTensor(name="weight_scale", shape=(rows, spec.num_groups(self.group)),
                         dtype="float8_e4m3fn", output_axis=0, input_axis=1),
            StoredTensor(name="weight_scale_2", shape=(), dtype="float32", is_per_part=True),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._float_formats import e2m1_weight

        return e2m1_weight(tensors["weight"], tensors["weight_scale"], tensors["weight_scale_2"])


class ModelOpt(StoredMethod):
    """Checkpoints that nvidia-modelopt exports."""

    info = Info(
        summary="ModelOpt checkpoints: FP8 and NVFP4; activations of FP8 in 8 bits on newer GPUs",
        source="https://github.com/NVIDIA/TensorRT-Model-Optimizer",
    )
    Options = Float8Options
    stored_as = ("modelopt",)
    ignored = SCALES_NOT_USED

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        inner = self.config.get("quantization")
        self.config = {**self.config, **inner} if isinstance(inner, dict) else self.config
        self.skipped += listed(self.config.get("exclude_modules") or ())
        self.algorithm = str(self.config.get("quant_algo", "")).upper()
        layers: Mapping[str, Any] = self.config.get("quantized_layers") or {}
        self.by_layer = {bare(name): entry for name, entry in layers.items()}
        self._check(self.algorithm)

    def layout(self, spec: LinearSpec) -> StorageLayout | None:
        """Return the layout that the layer's algorithm has."""
        name = self.algorithm
        if name == MIXED:
            name = one_for_parts(spec.name, self._algorithm_of, "", where=self.where)
        if name == "":
            return None
        self._check(name)
        if name.endswith("NVFP4"):
            return Nvfp4(group=int(self.config.get("group_size") or GROUP))
        if name == "FP8_PB_WO":
            return BlockScale(name="weight_scale", block=BLOCK, where=self.where)
        is_rounded = rounds(self.options.activations, spec)
        layout_class = WholeScale if name == "FP8" else OutputScale
        return layout_class(has_float8_activations=is_rounded)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer of 8-bit or 4-bit floats."""
        weight, scales = (layer.tensors.get(name) for name in ("weight", "weight_scale"))
        if weight is None or scales is None or weight.dtype != "uint8":
            has_blocks = scales is not None and len(scales.shape) == 4
            takes = BFLOAT16 if has_blocks else FLOAT8
            return float8_estimate(layer, block=BLOCK[1] if has_blocks else 0, takes=takes)
        outputs, pairs = weight.shape
        return codes_estimate(
            outputs,
            2 * pairs,
            group=2 * pairs // scales.shape[-1],
            scale_bytes=1,
            has_outer=True,
            packs=packs,
        )

    def _algorithm_of(self, layer: str) -> str:
        entry = self.by_layer.get(bare(layer)) or {}
        return str(entry.get("quant_algo", "")).upper()

    def _check(self, algorithm: str) -> None:
        if algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise self.refuse(f'quant_algo "{algorithm}" is not read; {known} are.')
