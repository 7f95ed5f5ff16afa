"""The checkpoint's tensors that a projector's file holds, and what each is made of.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dovetail.interfaces.data.headers import TensorHeader
from dovetail_plugins.gguf.blocks.types import PLAIN_DTYPES, QUANTIZED
from dovetail_plugins.gguf.projectors.projector import Change, Pair, Projector, ProjectorNames
from dovetail_plugins.gguf.reading.file import TensorExtent

QKV = ("attn_q", "attn_k", "attn_v")
JOINED = "attn_qkv"
PATCHES = "v.patch_embd.weight"
SECOND = f"{PATCHES}.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tensor of the checkpoint. Its `extents` are parts: rows, one after the other, or with
    `frames` the kernels of each frame. `third` of three equal parts of the only one is meant, if it
    is not None. `change` undoes what the converter did."""

    extents: tuple[TensorExtent, ...]
    frames: bool = False
    third: int | None = None
    change: Change | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape in the checkpoint, apart from axes of size one."""
        first = self.extents[0].shape
        if self.frames:
            return (*first[:2], len(self.extents), *first[2:])
        if self.third is not None:
            return (first[0] // 3, *first[1:])
        return (sum(one.shape[0] for one in self.extents), *first[1:])

    @property
    def dtype(self) -> str:
        """Return the name of its number type, in headers."""
        kinds = {one.type.name for one in self.extents}
        kind = kinds.pop() if len(kinds) == 1 else "F32"
        return "F32" if kind in QUANTIZED else PLAIN_DTYPES.get(kind, kind)


def targets_of(pair: Pair, projectors: Sequence[Projector]) -> dict[str, Target]:
    """Return the checkpoint's name -> what it is made of. Raises: ConfigError for unknown names and
    for parts that are missing"""
    found: dict[str, Target] = {}
    unknown = {one.name for one in pair.clip.model.extents}
    for projector in projectors:
        names, start = projector.names(pair), f"{projector.part[0]}.blk."
        unknown -= {*names.left_out}
        parts: dict[str, dict[int, TensorExtent]] = {}
        for extent in pair.clip.model.extents:
            for name, number, third in _places(names, extent, start):
                unknown.discard(extent.name)
                if number is None:
                    part = extent.name.replace(JOINED, QKV[third or 0])
                    change = _change(names, extent.name if third is None else part, start)
                    found[name] = Target(extents=(extent,), third=third, change=change)
                else:
                    parts.setdefault(name, {})[number] = extent
        found |= _joined(pair, names, parts)
    if unknown:
        some = ", ".join(sorted(unknown)[:5])
        raise pair.fault(
            f"{len(unknown)} tensors have names that are not known: {some}.",
            fix="convert the projector again with a current llama.cpp.",
        )
    return found


def _joined(
    pair: Pair, names: ProjectorNames, parts: Mapping[str, Mapping[int, TensorExtent]]
) -> dict[str, Target]:
    """Return the tensors that several of the file's make. Raises: ConfigError"""
    found = {}
    for name, numbered in parts.items():
        frames = not name.rpartition(".")[0].endswith(f".{names.qkv}")
        count = 2 if frames else 3
        if sorted(numbered) != list(range(count)):
            have = ", ".join(one.name for one in numbered.values())
            raise pair.fault(f"of {count} parts of {name} the file has only {have}.")
        ordered = tuple(numbered[number] for number in range(count))
        if len({one.shape[1:] for one in ordered}) > 1:
            raise pair.fault(f"the parts of {name} have different shapes.")
        found[name] = Target(extents=ordered, frames=frames)
    return found


def _places(
    names: ProjectorNames, extent: TensorExtent, start: str
) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield the checkpoint's tensors that one of the file's belongs to: the name, the number of the
    part, and the third of it."""
    if names.frames and extent.name in (PATCHES, SECOND):
        yield f"{names.whole['v.patch_embd']}.weight", int(extent.name == SECOND), None
    elif extent.name.startswith(start):
        number, _, rest = extent.name.removeprefix(start).partition(".")
        block = f"{names.blocks}.{number}"
        stem, _, leaf = rest.rpartition(".")
        if names.qkv and stem in QKV:
            yield f"{block}.{names.qkv}.{leaf}", QKV.index(stem), None
        elif stem == JOINED and names.qkv:
            yield f"{block}.{names.qkv}.{leaf}", None, None
        elif stem == JOINED:
            for third, one in enumerate(QKV):
                yield f"{block}.{names.block[one]}.{leaf}", None, third
        elif (name := _name(names.block, rest)) is not None:
            yield f"{block}.{name}", None, None
    elif (name := _name(names.whole, extent.name)) is not None:
        yield name, None, None


def _name(known: Mapping[str, str], name: str) -> str | None:
    """Return the checkpoint's name of a tensor, None for an unknown one."""
    stem, _, leaf = name.rpartition(".")
    if name in known:
        return known[name]
    return f"{known[stem]}.{leaf}" if stem in known else None


def _change(names: ProjectorNames, name: str, start: str) -> Change | None:
    """Return what undoes the converter's change of a tensor, None if it made none."""
    rest = name.removeprefix(start).partition(".")[2] if name.startswith(start) else name
    known = (rest, rest.rpartition(".")[0])
    return next((names.changes[one] for one in known if one in names.changes), None)


def headers_of(pair: Pair, projectors: Sequence[Projector]) -> Iterator[TensorHeader]:
    """Yield the projector's tensors under the checkpoint's names. Raises: ConfigError"""
    folder = pair.text.model.path.parent
    for name, target in targets_of(pair, projectors).items():
        path = target.extents[0].path
        yield TensorHeader(
            name=name,
            shape=target.shape,
            dtype=target.dtype,
            num_bytes=sum(one.num_bytes for one in target.extents) // (3 if target.third else 1),
            file=path.name if path.parent == folder else str(path),
        )
