"""Maps GGUF's tensor names to those of the same model's Hugging Face checkpoint.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dovetail.errors import ConfigError, listed
from dovetail.interfaces.data.headers import TensorHeader
from dovetail_plugins.gguf.blocks.types import PLAIN_DTYPES, QUANTIZED
from dovetail_plugins.gguf.families import families
from dovetail_plugins.gguf.families.family import FamilyNames
from dovetail_plugins.gguf.reading.file import GgufModel, TensorExtent
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.gguf.reading.stacks import divided, expert_of

HEAD = "lm_head"
TABLE = "embed_tokens"
"""`stored_types`' name of a token table."""
ROPE = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Tensors that hold settings of the rotary embedding: the config has them."""
NAMES_SHOWN = 5
_LEAVES = ("weight", "bias")
"""The parameters of modules. Scales of whole matrices are not read."""
_EXPERT_WORDS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Mixtral's own names of an expert's matrices."""
_NO_MATRICES = frozenset(
    {"wpe", "head_sinks", "conv", "conv1d", "correction_coefs", "prediction_coefs"}
    | {f"{part}_conv1d" for part in "qkv"}
)
"""Modules, in addition to norms, whose weight is no matrix of a linear layer."""
_FLOATS = frozenset(
    {"position_embd", "token_types", "cls", "cls.output", "dense_2", "dense_3", "attn_rel_b"}
)
"""GGUF's names of small matrices that are in full precision here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTarget:
    """The destination of a tensor: parameter `leaf` of `module`. `stem`: GGUF's name of it in a
    block. `is_stacked`: it holds all experts', or all of several modules that are numbered;
    `number`: it holds that expert's; `has_letters`: experts' are w1, w3 and w2; `is_joined`: it is
    part of the module's matrix; `is_whole`: it is never kept quantized."""

    module: str
    leaf: str
    stem: str = ""
    is_stacked: bool = False
    number: int | None = None
    has_letters: bool = False
    is_joined: bool = False
    is_whole: bool = False

    @property
    def is_matrix(self) -> bool:
        """Return whether a linear layer or the token table holds it: it may stay quantized."""
        last = self.module.rpartition(".")[2]
        is_other = "norm" in last or last.startswith("ln_") or last in _NO_MATRICES
        is_other = is_other or self.stem in _FLOATS or self.is_joined or self.is_whole
        return self.leaf == "weight" and not is_other

    @property
    def owner(self) -> str:
        """Return the module of the checkpoint that has the tensor, which is not stacked."""
        return self.module if self.number is None else self.expert(self.number)

    def expert(self, number: int) -> str:
        """Return the checkpoint's name of one expert's module, or of one that is numbered."""
        holder, _, word = self.module.rpartition(".")
        if not holder.endswith("experts"):
            return f"{self.module}.{number}"
        return f"{holder}.{number}.{_EXPERT_WORDS[word] if self.has_letters else word}"


def layout_of(model: GgufModel) -> FamilyNames | None:
    """Return the names of a model's tensors, None for an architecture that is not known."""
    settings = Settings(model)
    family = families().get(settings.architecture)
    if family is None:
        return None
    layout = family.other_names(model) or family.names
    if model.plain:
        layout = replace(layout, whole=layout.whole | model.plain)
    drafting = settings.find(".nextn_predict_layers", int)
    if not drafting or (layout.has_drafts and not layout.drafts):
        return layout
    return replace(layout, num_layers=settings.number(".block_count") - drafting)


def check_names(model: GgufModel, layout: FamilyNames) -> None:
    """Raises: ConfigError that lists tensors whose names are not known: the file may be older, or
    newer, than the names of its architecture here."""
    unknown = [
        one.name
        for one in divided(model.extents)
        if place_of(layout, one.name) is None and not _is_unread(layout, one.name)
    ]
    if unknown:
        raise ConfigError(
            f"{len(unknown)} tensors have names that are not known for the architecture "
            f'"{model.settings.get("general.architecture")}": '
            f"{listed(unknown, NAMES_SHOWN)}.",
            where=str(model.path),
            fix="convert the model again with a current llama.cpp, or serve the checkpoint that "
            "the file was made of.",
        )


def _is_unread(layout: FamilyNames, name: str) -> bool:
    """Return whether a tensor is not a weight of the model, but a setting or part of a drafter."""
    return name.removesuffix(".weight") in ROPE or layout.is_left_out(name)


def place_of(layout: FamilyNames, name: str) -> TensorTarget | None:
    """Return the destination of a tensor, or None for an unknown name."""
    side, _, rest = name.partition(".")
    if side in layout.sides:
        return place_of(layout.sides[side], rest)
    words = name.split(".", 2)
    if layout.is_left_out(name):
        return None
    if len(words) == 3 and words[0] == "blk":
        return _place_in_block(layout, *_block_of(layout, name))
    stem, _, leaf = name.rpartition(".")
    if stem in layout.trunk:
        return TensorTarget(
            module=layout.trunk[stem],
            leaf=leaf,
            stem=stem,
            is_stacked=stem in layout.stacked,
            is_whole=stem in layout.whole,
        )
    return None


def _block_of(layout: FamilyNames, name: str) -> tuple[str, str]:
    """Return the checkpoint's name of a tensor's block, and the tensor's name in it."""
    _, block, own = name.split(".", 2)
    number = layout.drafting(name)
    if number is None:
        return f"{layout.blocks}.{block}", own
    return f"{layout.draft_blocks}.{number}", own


def _place_in_block(layout: FamilyNames, block: str, name: str) -> TensorTarget | None:
    if name in layout.own:
        module, _, leaf = f"{block}.{layout.own[name]}".rpartition(".")
        return TensorTarget(module=module, leaf=leaf, stem=name)
    stem, _, leaf = name.rpartition(".")
    if stem in layout.drafts:
        return TensorTarget(module=layout.drafts[stem], leaf=leaf, stem=stem)
    if stem in layout.joined:
        return TensorTarget(
            module=f"{block}.{layout.joined[stem]}", leaf=leaf, stem=stem, is_joined=True
        )
    all_experts, number = expert_of(stem) or (stem, None)
    if all_experts not in layout.block or leaf not in _LEAVES:
        return None
    return TensorTarget(
        module=f"{block}.{layout.block[all_experts]}",
        leaf=leaf,
        stem=stem,
        is_stacked=stem.endswith("_exps"),
        number=number,
        has_letters=layout.has_letters,
    )


def stored_types(model: GgufModel) -> dict[str, str]:
    """Return module -> type of all matrices of a file, nothing if none is quantized.

    A token table has the head's name, too, if there is no separate head.
    """
    layout = layout_of(model)
    assert layout is not None, "settings of this architecture are read"
    tables = {TABLE} if has_head(model.extents) else {TABLE, HEAD}
    types: dict[str, str] = {}
    for extent in divided(model.extents):
        place = place_of(layout, extent.name)
        if place is not None and place.is_matrix:
            is_table = place.module == layout.trunk["token_embd"]
            numbered = place.is_stacked and "experts" not in place.module
            numbers = range(extent.shape[0] if numbered else 0)
            for name in tables if is_table else {place.module}:
                if types.setdefault(name, extent.type.name) != extent.type.name:
                    raise _several_types(extent, types[name])
            types |= dict.fromkeys(map(place.expert, numbers), extent.type.name)
    quantized = any(one.type.name in QUANTIZED for one in model.extents)
    return types if quantized else {}


def _several_types(extent: TensorExtent, other: str) -> ConfigError:
    return ConfigError(
        f"{extent.name} is {extent.type.name}, and the same matrix of another expert is {other}: "
        "the experts of a layer are read in one type.",
        where=str(extent.path),
        fix="quantize the model again with a current llama.cpp, or choose another file of it.",
    )


def has_head(extents: Iterable[TensorExtent]) -> bool:
    """Return whether the head has a separate matrix."""
    return any(extent.name == "output.weight" for extent in extents)


def headers_of(model: GgufModel) -> Iterator[TensorHeader]:
    """Yield the tensors of a model under the checkpoint's names, blocks by the type's own name."""
    layout = layout_of(model)
    joined: dict[str, TensorExtent] = {}
    for extent in divided(model.extents):
        place = None if layout is None else place_of(layout, extent.name)
        if layout is not None and place is None and _is_unread(layout, extent.name):
            continue
        if place is None:
            yield _header(extent, extent.name, extent.shape, extent.num_bytes)
        elif place.is_joined:
            first = joined.setdefault(place.module, extent)
            if first is not extent:
                yield _joined_header(f"{place.module}.{place.leaf}", first, extent)
        elif place.is_stacked:
            shape, count = extent.shape[1:], extent.shape[0]
            for number in range(count):
                name = f"{place.expert(number)}.{place.leaf}"
                yield _header(extent, name, shape, extent.num_bytes // count)
        else:
            name = f"{place.owner}.{place.leaf}"
            yield _header(extent, name, extent.shape, extent.num_bytes)


def _joined_header(name: str, first: TensorExtent, second: TensorExtent) -> TensorHeader:
    """Return the matrix that the keys' and the values' part of latents make: float32."""
    keys, values = (first, second) if ".attn_k_b." in first.name else (second, first)
    heads, inputs, rows = keys.shape
    shape = (heads * (rows + values.shape[1]), inputs)
    return TensorHeader(
        name=name,
        shape=shape,
        dtype="F32",
        num_bytes=4 * shape[0] * shape[1],
        file=first.path.name,
    )


def _header(
    extent: TensorExtent, name: str, shape: tuple[int, ...], num_bytes: int
) -> TensorHeader:
    dtype = PLAIN_DTYPES.get(extent.type.name, extent.type.name)
    return TensorHeader(
        name=name, shape=shape, dtype=dtype, num_bytes=num_bytes, file=extent.path.name
    )
