"""A fused layer whose parts a checkpoint stores differently: q in full precision, k in 4 bits.

Each part's tensors are the method's own; a name shared by several layouts gets a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dovetail.interfaces.quantization import LinearSpec, StoredTensor, weight_tensor
from dovetail.layers.linear.placement import numbered

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight
    from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout


@dataclass(frozen=True, slots=True)
class PlainLayout:
    """A matrix in full precision."""

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight."""
        return (weight_tensor(spec, spec.weight_dtype or spec.dtype),)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix unchanged."""
        from dovetail_plugins.layers.stored.matrix_linear import as_stored

        return as_stored(tensors["weight"])


@dataclass(frozen=True, slots=True)
class MixedLayout:
    """`layouts` of the fused parts, in order."""

    layouts: tuple[StorageLayout, ...]
    spec: LinearSpec

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tensors of all layouts, each for the parts that are stored in it."""
        return tuple(tensor for _, names in self._groups() for tensor in names.values())

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix of one part."""
        for layout, names in self._groups():
            own = {word: one.name for word, one in names.items()}
            if set(own.values()) == set(tensors):
                return layout.weight({word: tensors[name] for word, name in own.items()})
        raise AssertionError(f"no part is stored in {sorted(tensors)}")

    def _groups(self) -> Iterator[tuple[StorageLayout, dict[str, StoredTensor]]]:
        """Yield each layout, and its tensors by the layout's own names."""
        taken: set[str] = set()
        for layout, parts in _grouped(self.layouts):
            sizes = tuple(self.spec.out_sizes[part] for part in parts)
            own = layout.tensors(replace(self.spec, out_sizes=sizes))
            is_taken = any(one.name in taken for one in own)
            named = {}
            for one in own:
                name = numbered(one.name, parts[0]) if is_taken else one.name
                named[one.name] = replace(one, name=name, parts=parts)
            taken |= {one.name for one in named.values()}
            yield layout, named


def _grouped(layouts: Sequence[StorageLayout]) -> Iterator[tuple[StorageLayout, tuple[int, ...]]]:
    """Yield each layout with the numbers of its parts."""
    done: list[StorageLayout] = []
    for layout in layouts:
        if layout not in done:
            done.append(layout)
            yield layout, tuple(n for n, other in enumerate(layouts) if other == layout)
