"""Which layer of a loaded model uses which part of an entry's file."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from dovetail.layers.decoder_head import HEAD
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.moe.experts import Experts
from dovetail_plugins.packed_weights.entry_file import Place

_SLOT = re.compile(r"_(\d+)_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The layer that a place belongs to. `block` is the entry of a module list that the layer is
    in, `list_name` the path of this list; `slot`: whose of the layer's experts the place is, if all
    are on this rank. `is_table`: rows of it are looked up, and nothing is multiplied by it."""

    module: nn.Module
    block: nn.Module | None
    list_name: str
    slot: int | None
    is_table: bool


def drop_buffers(model: nn.Module, places: Sequence[Place]) -> None:
    """Remove the buffers in these places from a model, whose products know their addresses: what
    saves, frees or counts a model's tensors in memory has nothing to do with them. Mutates: model
    """
    spans = sorted((place.address, place.address + place.num_bytes) for place in places)
    starts = [start for start, _ in spans]
    for module in model.modules():
        for name, tensor in list(module.named_buffers(recurse=False)):
            at = bisect_right(starts, tensor.data_ptr()) - 1
            if at >= 0 and tensor.data_ptr() < spans[at][1]:
                delattr(module, name)


def owners(model: nn.Module, places: Sequence[Place]) -> Iterator[tuple[Place, Owner]]:
    """Yield each place that is in a buffer of a module, in the order of the modules."""
    by_address = {place.address: place for place in places}
    starts = sorted(by_address)
    modules = dict(model.named_modules())
    for path, module in modules.items():
        block, list_name = _block_of(path, modules)
        for name, tensor in module.named_buffers(recurse=False):
            at = bisect_right(starts, tensor.data_ptr()) - 1
            place = by_address.get(starts[at]) if at >= 0 else None
            if place is None or tensor.data_ptr() >= place.address + place.num_bytes:
                continue
            del by_address[place.address]
            owner = Owner(
                module=module,
                block=block,
                list_name=list_name,
                slot=_slot_of(module, name),
                is_table=isinstance(module, VocabParallelEmbedding) and HEAD not in place.name,
            )
            yield place, owner


def _block_of(path: str, modules: Mapping[str, nn.Module]) -> tuple[nn.Module | None, str]:
    """Return the entry of the outermost module list that a path leads through, and the list's path;
    (None, "") if there is none."""
    names = path.split(".")
    for count in range(len(names)):
        list_name = ".".join(names[:count])
        if isinstance(modules[list_name], nn.ModuleList):
            return modules[".".join(names[: count + 1])], list_name
    return None, ""


def _slot_of(module: nn.Module, buffer_name: str) -> int | None:
    """Return the number of the expert that a buffer of a layer belongs to, if it has one."""
    found = _SLOT.search(buffer_name)
    if found is None or not isinstance(module, Experts) or module.slots is not None:
        return None
    return int(found.group(1))
