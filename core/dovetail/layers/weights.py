"""Loads checkpoint tensors into parameters by the WeightMap, and accounts for every name.

A load succeeds only if every parameter is filled and every tensor has a place.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from dovetail.errors import ConfigError, listed
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import Conversion, Model, WeightMap
from dovetail.layers.dtypes import dtype_name
from dovetail.layers.linear.borrowing import borrowed, noted, pieces_of, settle
from dovetail.layers.linear.placement import Placement, WeightHolder, is_optional, memory_of

NAMES_SHOWN = 10
TIED_FIX = (
    'set "tie_word_embeddings" to false with --hf-overrides or in config.json where the model was '
    "trained with both, and remove the wrong one from the file where it was not"
)

Finish = Callable[[WeightHolder], None]
"""Lets a layer repack its filled parameters."""


def own_finish(holder: WeightHolder) -> None:
    """Let a layer repack its filled parameters with its own method. Mutates: holder"""
    holder.finish()


@dataclass(slots=True, kw_only=True)
class LoadReport:
    """How the checkpoint's tensors were used. The lists of faults are empty after success.
    `different` are pairs of tensors with different values for the same piece. `sources` maps each
    piece to its checkpoint name."""

    num_filled: int = 0
    ignored: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    sources: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A mapped checkpoint name: the parameter path, its fused part, whether its name is tied to
    another parameter, and whether a checkpoint may have the parameter under several names."""

    path: str
    part: str | None = None
    is_tied: bool = False
    is_shared: bool = False


def load_weights(
    module: nn.Module,
    weight_map: WeightMap,
    tensors: Iterable[tuple[str, torch.Tensor]],
    rank: RankSpec | None = None,
    ignored: tuple[str, ...] = (),
    *,
    repacks: bool = True,
    finish: Finish = own_finish,
) -> LoadReport:
    """Fill every parameter of `module` and let layers repack them, each as soon as it is full.

    So a layer's weight is in memory twice only while it is repacked. `ignored` are endings of names
    to skip. Without `repacks` the parameters stay as filled. `finish` is called with each layer
    instead of the layer's own finish. Mutates: module
    Raises: ConfigError that lists missing, unexpected and misfitting names.
    """
    report = LoadReport()
    filled: dict[str, set[str]] = defaultdict(set)
    unfinished = _Unfinished(module, finish if repacks else None)
    if weight_map.conversion is not None:
        tensors = weight_map.conversion(tensors)
    for name, tensor in tensors:
        target = None if name.endswith(ignored) else map_name(weight_map, name)
        if target is None:
            report.ignored.append(name)
            continue
        lends = repacks and not target.is_shared  # more names may fill what is shared
        path = _fill(module, weight_map, name, target, tensor, filled, report, lends=lends)
        if path is not None and not target.is_shared:
            unfinished.finish_if_full(path, filled)
            settle(module, path)
    report.missing = _missing(unfinished.wanted, filled)
    _raise_faults(report, rank or RankSpec(), unfinished.hint(report.missing))
    unfinished.finish_rest()
    return report


def load_parameters(
    module: nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    rank: RankSpec | None = None,
    *,
    finish: Finish = own_finish,
) -> LoadReport:
    """Fill every parameter of `module` with the tensor of its own name and shape, and repack.

    Restores what `load_weights` with repacks=False has filled, without renaming or cutting.
    Mutates: module
    Raises: ConfigError that lists missing, unexpected and misfitting names.
    """
    report = LoadReport()
    filled: dict[str, set[str]] = {}
    unfinished = _Unfinished(module, finish)
    parameters = dict(module.named_parameters())
    for name, tensor in tensors:
        if name not in parameters:
            report.unexpected.append(name)
            continue
        placement = Placement(name=name, piece="", target=memory_of(parameters[name]))
        fault = _misfit(placement, tensor)
        if fault:
            report.misfits.append(f"{name}: {fault}")
            continue
        placement.fill(tensor)
        report.num_filled += 1
        filled[name] = unfinished.wanted.get(name, {""})
        unfinished.finish_if_full(name, filled)
    report.missing = [name for name in parameters if name not in filled]
    _raise_faults(report, rank or RankSpec())
    unfinished.finish_rest()
    return report


def finish_weights(module: nn.Module, finish: Finish = own_finish) -> None:
    """Let every layer repack its filled parameters. Mutates: module"""
    for child in [*module.modules()]:
        if isinstance(child, WeightHolder):
            finish(child)


class _Unfinished:
    """The pieces that each parameter waits for, and the layers to repack when all have arrived."""

    def __init__(self, module: nn.Module, finish: Finish | None) -> None:
        self._finish = finish
        self.wanted: dict[str, set[str]] = {}
        self._holders: dict[str, WeightHolder] = {}
        self._finished: set[str] = set()
        self._optional: dict[str, set[str]] = {}
        self._parameters: dict[str, list[str]] = defaultdict(list)
        owners = dict(module.named_modules())
        for path, parameter in module.named_parameters():
            parent, _, leaf = path.rpartition(".")
            owner = owners[parent]
            pieces = owner.pieces(leaf) if isinstance(owner, WeightHolder) else {""}
            if isinstance(owner, WeightHolder):
                self._holders[path] = owner
            if is_optional(parameter):
                self._optional[path] = pieces
                continue
            self.wanted[path] = pieces
            if isinstance(owner, WeightHolder):
                self._parameters[parent].append(path)

    def finish_if_full(self, path: str, filled: Mapping[str, set[str]]) -> None:
        """Repack the layer of parameter `path` if all its pieces have arrived. Mutates: the
        layer"""
        if self._finish is None:
            return
        parent = path.rpartition(".")[0]
        own = self._parameters.get(parent, [])
        optional = (p for p in self._optional if p.rpartition(".")[0] == parent)
        if any(not self._optional[p] <= filled.get(p, set()) for p in optional):
            return  # they may still arrive
        if own and all(self.wanted[p] <= filled.get(p, set()) for p in own):
            self._finish(self._holders[path])
            self._finished.update(own)

    def hint(self, missing: Sequence[str]) -> str:
        """Return the advice about missing parameters, if all their layers give the same."""
        owners = [self._holders.get(path.partition(" ")[0]) for path in missing]
        hints = {owner.if_missing if owner is not None else "" for owner in owners}
        return hints.pop() if len(hints) == 1 else ""

    def finish_rest(self) -> None:
        """Repack the layers that tensors of several names may fill. Mutates: those layers"""
        if self._finish is None:
            return
        rest = {
            id(holder): holder
            for path, holder in self._holders.items()
            if path in self.wanted and path not in self._finished
        }
        for holder in rest.values():
            self._finish(holder)


def checkpoint_shapes(
    module: nn.Module, weight_map: WeightMap
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name -> (shape, dtype name) of tensors that would fill `module`.

    The names are the parameters' own; fused matrices are one tensor; shapes are before sharding.
    Loading such tensors through the same weight map fills everything.
    """
    shapes = {}
    for path, parameter in module.named_parameters():
        placements = _place(module, path, None)
        assert placements, f"{path} has no place for itself"
        shape = placements[0].full_shape
        if path.endswith(weight_map.transposed):
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes[path] = (shape, dtype_name(parameter.dtype))
    return shapes


def weight_map_of(model: Model) -> WeightMap:
    """Return how the names in a checkpoint map to a model's parameters: by its `published_names`,
    which the parts of a drafter lack, then by its own map."""
    own, first = model.weight_map(), getattr(model, "published_names", WeightMap())
    if first == WeightMap():
        return own
    conversion = None if own.conversion is None else partial(_converted, first, own.conversion)
    return replace(first, parts={"": own}, transposed=own.transposed, conversion=conversion)


def _converted(
    first: WeightMap, conversion: Conversion, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a conversion makes of tensors that are renamed first."""
    renamed = ((map_name(first, name), tensor) for name, tensor in tensors)
    return conversion((target.path, tensor) for target, tensor in renamed if target is not None)


def map_name(weight_map: WeightMap, name: str) -> Target | None:
    """Return the target of a checkpoint name, or None when it holds no weight."""
    if any(text in name for text in weight_map.ignored):
        return None
    for old, new in weight_map.prefixes:
        if name.startswith(old):
            name = new + name.removeprefix(old)
            break
    for old, new in weight_map.renames:
        name = name.replace(old, new)
    for start, part_map in weight_map.parts.items():
        if name.startswith(start):
            found = map_name(part_map, name.removeprefix(start))
            return None if found is None else replace(found, path=start + found.path)
    tied = weight_map.tied.get(name)
    name = tied or name
    path, part = _unfuse(weight_map.fused, name)
    is_shared = name in weight_map.tied.values()
    return Target(path=path, part=part, is_tied=tied is not None, is_shared=is_shared)


def names_of(weight_map: WeightMap, path: str) -> Iterator[tuple[str, Target]]:
    """Yield checkpoint names that map to a parameter or its parts, by inverting the map's steps;
    there may be others."""
    for name in _undone(weight_map, path):
        target = map_name(weight_map, name)
        if target is not None and target.path == path:
            yield name, target


def _undone(weight_map: WeightMap, path: str) -> set[str]:
    """Return names that may map to a parameter."""
    words = path.split(".")
    names = {path}
    for i, word in enumerate(words):
        leaves = [name for name, (leaf, _) in weight_map.fused.items() if leaf == word]
        names |= {".".join([*words[:i], leaf, *words[i + 1 :]]) for leaf in leaves}
    for start, part_map in weight_map.parts.items():
        if path.startswith(start):
            names |= {start + name for name in _undone(part_map, path.removeprefix(start))}
    for old, new in reversed(weight_map.renames):
        names |= {name.replace(new, old) for name in names if new}
    for old, new in weight_map.prefixes:
        names |= {old + name.removeprefix(new) for name in names if name.startswith(new)}
    return names


def _unfuse(fused: Mapping[str, tuple[str, str]], name: str) -> tuple[str, str | None]:
    """Return the fused parameter's path and the part that `name` is."""
    words = name.split(".")
    for i, word in enumerate(words):
        if word in fused:
            leaf, part = fused[word]
            return ".".join([*words[:i], leaf, *words[i + 1 :]]), part
    return name, None


def _fill(
    module: nn.Module,
    weight_map: WeightMap,
    name: str,
    target: Target,
    tensor: torch.Tensor,
    filled: dict[str, set[str]],
    report: LoadReport,
    *,
    lends: bool,
) -> str | None:
    """Copy one tensor to its place; return the parameter it is part of, if it has one. One that
    `lends` becomes the memory of a parameter that borrows.

    Mutates: module, filled, report
    """
    placements = _place(module, target.path, target.part, tensor.shape)
    if placements is None:
        report.unexpected.append(name)
        return None
    if name.endswith(weight_map.transposed):
        tensor = tensor.mT if tensor.dim() > 1 else tensor
    for placement in (p.fitted(tensor.shape) for p in placements):
        tensor = _in_shape(tensor, placement.full_shape)
        fault = _misfit(placement, tensor)
        if fault:
            report.misfits.append(f"{name}: {fault}")
            return None
        first = report.sources.setdefault((placement.name, placement.piece), name)
        if (pieces := pieces_of(module.get_parameter(placement.name))) is not None:
            is_same = noted(pieces, placement, tensor)
        elif first != name:
            is_same = placement.holds(tensor)
        else:
            is_same = True
            if not (lends and borrowed(module, placement, tensor)):
                placement.fill(tensor)
        if not is_same:
            report.different.append(f"{first} and {name}")
        filled[placement.name].add(placement.piece)
    report.num_filled += 1
    return placements[0].name if placements else None


def _in_shape(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor in a shape that differs only by axes of size one or is its unflattened form,
    as for some packed weights and scales; any other unchanged."""
    sizes = [size for size in tensor.shape if size != 1]
    wanted = [size for size in shape if size != 1]
    is_flat = len(sizes) == 1 and sizes[0] == math.prod(wanted)
    return tensor.reshape(shape) if sizes == wanted or is_flat else tensor


def _misfit(placement: Placement, tensor: torch.Tensor) -> str | None:
    """Return why `tensor` cannot fill `placement`, or None."""
    if tuple(tensor.shape) != placement.full_shape:
        return f"shape {list(tensor.shape)}, the model wants {list(placement.full_shape)}"
    if tensor.is_floating_point() != placement.target.is_floating_point():
        found, wanted = dtype_name(tensor.dtype), dtype_name(placement.target.dtype)
        return f"dtype {found}, the model wants {wanted} (is the checkpoint quantized?)"
    return None


def _place(
    module: nn.Module, path: str, part: str | None, shape: Sequence[int] | None = None
) -> list[Placement] | None:
    """Walk down to the layer that owns `path`; placements carry whole parameter paths. `shape` is
    the tensor's, if there is one."""
    owner, words = module, path.split(".")
    for i, word in enumerate(words):
        if isinstance(owner, WeightHolder) and word not in owner._modules:
            leaf = ".".join(words[i:])
            if shape is None:
                return _prefixed(owner.place(leaf, part), words[:i])
            return _prefixed(owner.place_tensor(leaf, part, shape), words[:i])
        child = owner._modules.get(word)
        if child is None:
            parameter = owner._parameters.get(word)
            if parameter is None or i + 1 < len(words) or part is not None:
                return None
            return [Placement(name=path, piece="", target=memory_of(parameter))]
        owner = child
    return None


def _prefixed(placements: list[Placement] | None, words: list[str]) -> list[Placement] | None:
    if placements is None:
        return None
    return [
        Placement(name=".".join([*words, p.name]), piece=p.piece, target=p.target, cuts=p.cuts)
        for p in placements
    ]


def _missing(wanted_pieces: Mapping[str, set[str]], filled: Mapping[str, set[str]]) -> list[str]:
    """Return the parameters that no tensor filled, or their missing parts."""
    missing = []
    for path, wanted in wanted_pieces.items():
        absent = wanted - filled.get(path, set())
        if absent == wanted:
            missing.append(path)
        else:
            missing.extend(f"{path} ({piece})" for piece in sorted(absent))
    return missing


def _raise_faults(report: LoadReport, rank: RankSpec, hint: str = "") -> None:
    """Raises: ConfigError when anything is missing, misfits or was not expected; `hint` is the
    advice about missing parameters."""
    faults = [
        _listed("missing", report.missing),
        _listed("unexpected", report.unexpected),
        _listed("misfitting", report.misfits),
        _listed("with different values for the same weight", report.different),
    ]
    message = "; ".join(text for text in faults if text)
    if not message:
        return
    where = f"rank {rank.rank} of {rank.world_size}" if rank.world_size > 1 else "checkpoint"
    fix = "check that config.json and the weight files belong to each other"
    if rank.tensor_size > 1 and report.misfits:
        fix += ", or use fewer ranks: a group of inputs with one scale cannot be divided"
    if report.different:
        fix = TIED_FIX
    fix = hint or fix
    raise ConfigError(f"the weights do not fit the model: {message}", where=where, fix=fix)


def _listed(word: str, names: list[str]) -> str:
    if not names:
        return ""
    return f"{len(names)} {word}: {listed(names, NAMES_SHOWN)}"
