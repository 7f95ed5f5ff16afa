"""aqlm checkpoints: every few weights are a sum of vectors from codebooks.

Per layer `codes` [O / a, I / b, C] (int8 or int16, taken as unsigned), `codebooks`
[C, 2 ** bits, a, b] and `scales` [O / a, 1, 1, 1]: the block of a outputs and b inputs is the sum
of codebooks[c, codes[.., c]] times its scale. With blocks of one output and eight inputs, codes
stay codes on CPUs, with float16 points; other shapes, and all on a GPU, are stored in float16, 16
bits a weight. Source: https://github.com/Vahe1994/AQLM and its inference library, version 1.1.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import CheckpointMethod
from dovetail_plugins.layers.stored.rounding import FLOAT
from dovetail_plugins.quantization._estimates import plain_estimate

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BLOCK_ROWS = 256
MOST_BOOKS = 8
MIN_POINTS = 256
"""Points of a codebook, at least: kernels' codes take 8 bits or more."""


class Aqlm(CheckpointMethod):
    """Additive quantization: sums of points of codebooks."""

    info = Info(
        summary="aqlm checkpoints: codebooks; codes on CPUs, float16 on GPUs",
        source="https://github.com/Vahe1994/AQLM",
    )
    stored_as = ("aqlm",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        left = self.config.get("linear_weights_not_to_quantize") or ()
        self.skipped += tuple(str(name).removesuffix(".weight") for name in left)
        self.bits = int(self.config.get("nbits_per_codebook", 16))
        self.num_books = int(self.config.get("num_codebooks", 1))
        self.outs = int(self.config.get("out_group_size", 1))
        self.ins = int(self.config.get("in_group_size", 8))
        if not 1 <= self.bits <= 16:
            raise self.refuse(f"nbits_per_codebook {self.bits} is not read; 1 to 16 are.")

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the memory of a layer of codes."""
        codes = layer.tensors.get("codes")
        if codes is None:
            return None
        count = codes.num_values // self.num_books * self.outs * self.ins
        books, outputs = layer.tensors.get("codebooks"), codes.shape[0]
        if not packs or books is None or not self._has_kernel():
            return plain_estimate(count, "float16")
        points = self.num_books * max(MIN_POINTS, 2**self.bits) * self.ins
        code_bytes = codes.num_values * max(8, self.bits) // 8
        return StorageEstimate(
            num_values=count,
            format=f"{self.num_books} x {self.bits} bits for {self.ins}",
            num_bytes=code_bytes + 2 * points + 4 * outputs,
            takes=FLOAT,
        )

    def _has_kernel(self) -> bool:
        """Return whether kernels have a format for codes of this shape."""
        return (self.outs, self.ins) == (1, 8) and self.num_books <= MOST_BOOKS

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return codes, codebooks and scales."""
        rows, columns = spec.out_size // self.outs, spec.in_size // self.ins
        return (
            StoredTensor(name="codes", shape=(rows, columns, self.num_books),
                         dtype="int8" if self.bits <= 8 else "int16", output_axis=0, input_axis=1),
            StoredTensor(name="codebooks", is_per_part=True, dtype="float32",
                         shape=(self.num_books, 2**self.bits, self.outs, self.ins)),
            StoredTensor(name="scales", shape=(rows, 1, 1, 1), dtype="float32", output_axis=0),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix: sums of points if kernels have a format for it, else dense."""
        import torch
        import torch.nn.functional as F

        from dovetail_kernels.gemm.weight import POINTS_GROUP, Weight

        codes, books, scales = (tensors[name] for name in ("codes", "codebooks", "scales"))
        points = books.half()
        if not self._has_kernel() or not bool(points.isfinite().all()):
            return self._dense(codes, books, scales)
        missing = max(0, MIN_POINTS - points.shape[1])
        return Weight(
            format="vectors",
            values=(codes.int() & (2**self.bits - 1)).to(torch.int16).flatten(1),
            points=F.pad(points.squeeze(2), (0, 0, 0, missing)).contiguous(),
            scales=scales.float().flatten(1),
            group=-(-codes.shape[1] * self.ins // POINTS_GROUP) * POINTS_GROUP,
        )

    def _dense(self, codes: torch.Tensor, books: torch.Tensor, scales: torch.Tensor) -> Weight:
        """Return the matrix in full precision."""
        import torch

        from dovetail_plugins.quantization._int8_formats import full_weight

        rows, columns, _ = codes.shape
        wide = torch.empty(rows * self.outs, columns * self.ins)
        for start in range(0, rows, BLOCK_ROWS):
            part = codes[start : start + BLOCK_ROWS].int() & (2**self.bits - 1)
            blocks = books[0][part[..., 0]]
            for number in range(1, self.num_books):
                blocks = blocks + books[number][part[..., number]]
            blocks = blocks * scales[start : start + BLOCK_ROWS]
            flat = blocks.transpose(1, 2).reshape(len(part) * self.outs, -1)
            wide[start * self.outs : start * self.outs + len(flat)] = flat
        return full_weight(wide)
