"""mxfp4 checkpoints: experts in 4-bit floats, 32 inputs to a scale that is a power of two.

Per expert matrix `blocks` uint8 [O, I / 32, 16], two e2m1 values a byte, the first in the low bits,
and `scales` uint8 [O, I / 32], e8m0; all experts' lie behind each other ("gate_up_proj_blocks").
Every other layer is in full precision. Kept packed, scales as bfloat16, which is exact. Source: the
gpt-oss checkpoints (https://huggingface.co/openai/gpt-oss-20b) and the OCP Microscaling Formats
specification 1.0, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod
from dovetail_plugins.quantization._estimates import codes_estimate

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

GROUP = 32
EXPERTS = ".experts."


class Mxfp4(StoredMethod):
    """4-bit float experts."""

    info = Info(
        summary="mxfp4 checkpoints: experts in 4-bit floats, as gpt-oss has them",
        source="https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf",
    )
    stored_as = ("mxfp4",)

    def layout(self, spec: LinearSpec) -> StorageLayout | None:
        """Return the layout of experts; others are plain."""
        return self if EXPERTS in spec.name else None

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the memory of all experts' matrices of one kind, each with its own table."""
        scales = layer.tensors.get("scales")
        if scales is None or "blocks" not in layer.tensors:
            return None
        estimate = codes_estimate(
            1, GROUP * scales.num_values, group=GROUP, scale_bytes=2, has_outer=False, packs=packs
        )
        tables = (scales.shape[0] - 1) * estimate.shared_bytes
        return replace(estimate, num_bytes=estimate.num_bytes + tables, shared_bytes=0)

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return blocks and scales."""
        groups = spec.num_groups(GROUP)
        return (
            StoredTensor(name="blocks", shape=(spec.out_size, groups, GROUP // 2), dtype="uint8",
                         output_axis=0, input_axis=1),
            StoredTensor(name="scales", shape=(spec.out_size, groups), dtype="uint8",
                         output_axis=0, input_axis=1),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._float_formats import e2m1_weight

        return e2m1_weight(tensors["blocks"].flatten(1), tensors["scales"])
