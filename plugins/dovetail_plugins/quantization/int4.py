"""int4: any full-precision checkpoint becomes 4-bit while it loads, with searched scales.

Each group of 32 inputs gets the scale and the offset with the least squared error, coded in a byte
each as K-quants do. What costs most gets more bits: values, attention's outputs, the head, and all
layers of narrow models. int4-plain rounds to nearest instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec, RunSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.layer_names import fused_parts
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._grids import Grid, grid_estimate
from dovetail_plugins.quantization._while_loading import WhileLoading

if TYPE_CHECKING:
    from dovetail_plugins.quantization._calibrated import InputSquares

HEAD = "lm_head"
HEADS = {"auto": 6, "int4": 4, "int5": 5, "int6": 6, "int8": 8, "none": 0}
"""The option `head` -> bits of the layer before the logits."""
GRIDS = {
    4: Grid(4, has_offsets=True),
    5: Grid(5),
    6: Grid(6, has_offsets=True),
    7: Grid(8),
    8: Grid(8),
}
BITS = (0, 4, 5, 6)
NARROW = ((768, 6), (1536, 5))
"""Models whose hidden states are narrower get these bits."""
MORE_BITS = {"v_proj": 2, "v": 2, "o_proj": 1, "out_proj": 1}
"""How many more a layer gets. Divergence that 4 bits of one kind of layer cost, over its share of
the weights, Qwen2.5 0.5B: v 1.6, o 0.09, q 0.04, up 0.04, gate 0.02, down 0.01; Gemma 3 270M with a
calibration text: v 1.0, up 0.16, gate 0.08, down 0.07."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Options(IntegerOptions):
    """Options of int4."""

    bits: int = field(
        default=0,
        metadata={
            "choices": BITS,
            "help": "bits of most layers; 0: 4, in narrow models 5 (hidden states below "
            f"{NARROW[1][0]}) or 6 (below {NARROW[0][0]})",
        },
    )
    head: str = field(
        default="auto",
        metadata={"choices": tuple(HEADS), "help": "bits of the layer before the logits"},
    )
    skip: tuple[str, ...] = field(
        default=(), metadata={"help": "parts of layer names that stay in full precision"}
    )
    calibration: str = field(
        default="",
        metadata={"help": "text file; inputs with large values in it count more in the search"},
    )
    calibration_tokens: int = field(
        default=2048, metadata={"help": "tokens of the text that are used"}
    )


class Int4(WhileLoading):
    """4-bit weights in groups, more bits for sensitive layers, 8-bit or float activations."""

    info = Info(
        summary="4-bit weights with searched scales, sensitive layers wider, while loading",
        source="https://github.com/ggml-org/llama.cpp/pull/1684",
    )
    Options = Int4Options

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self._squares: InputSquares | None = None
        width = model.hidden_size
        narrow = next((bits for below, bits in NARROW if width < below), 4)
        self.bits: int = options.bits or narrow

    @contextmanager
    def loading(self, run: RunSpec) -> Iterator[Callable[[Any], None] | None]:
        """Add what a calibration text tells to what packed weights are made of."""
        if self.options.calibration:
            from dovetail_plugins.quantization._calibrated import InputSquares

            text = self.options.calibration, self.options.calibration_tokens
            self._squares = InputSquares(run, *text)
        with super().loading(run) as follow:
            yield follow

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a full-precision layer."""
        if self.is_skipped(layer.name):
            return None
        return grid_estimate(layer, self._grid(layer.name), packs=packs)

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method of a layer with a grid for each of its parts."""
        from dovetail_plugins.quantization._fitted import FittedLinear, unknown

        names = fused_parts(spec.name) or (spec.name,)
        if len(names) != len(spec.out_sizes):
            names = (spec.name,) * len(spec.out_sizes)
        grids = [self._grid(name) for name in names]
        known = unknown if self._squares is None else self._squares.of
        return FittedLinear(grids, known, activations=self.activations)

    def _grid(self, name: str) -> Grid:
        """Return the grid of a matrix of the checkpoint."""
        if name == HEAD:
            return GRIDS[HEADS[self.options.head]]
        return GRIDS[self.bits + MORE_BITS.get(name.rpartition(".")[2], 0)]

    def _skipped(self) -> tuple[str, ...]:
        options: Any = self.options
        return (*options.skip, HEAD) if options.head == "none" else tuple(options.skip)
