"""Shared base of methods that read quantized checkpoints. Imports no torch.

A StoredMethod says which layout a layer has; a CheckpointMethod has one layout for all of them: a
layer's tensors, and the matrix they represent. Unquantized layers are read here, from the lists in
the checkpoint's config, under whichever key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantization import (
    LinearMethod,
    LinearSpec,
    StoredTensor,
    stored_method,
)
from dovetail_plugins.layers.stored.layer_names import fused_parts, is_listed
from dovetail_plugins.layers.stored.names import StoredNames
from dovetail_plugins.layers.stored.packing_method import PackingMethod
from dovetail_plugins.layers.stored.rounding import ActivationOptions, asked_of

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

SKIP_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
HEAD = "lm_head"
ROUTERS = (".gate", ".shared_expert_gate", ".router")


def listed(names: Any) -> tuple[str, ...]:
    """Return the names of a list, which some tools write as one string with commas."""
    words = names.split(",") if isinstance(names, str) else names
    return tuple(word.strip() for word in map(str, words) if word.strip())


class StorageLayout(Protocol):
    """The storage layout of one layer."""

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tensors that a layer is stored in."""

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix that the tensors of one part mean, in a format with float activations
        or, of integers with a scale per output, "int8". Raises: ConfigError"""


class StoredMethod(PackingMethod):
    """A layer is a StoredLinear, or a plain one if the checkpoint does not quantize it."""

    capabilities = frozenset({"from_checkpoint"})
    Options = ActivationOptions
    has_own_rows: ClassVar[bool] = False
    """Whether a row of a matrix depends on the same row of its tensors alone (StoredLinear)."""

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options
        self.activations = asked_of(options)
        self.where = str(Path(model.path, "config.json"))
        self.config: Mapping[str, Any] = model.hf_config.get("quantization_config") or {}
        lists = (self.config.get(name) or () for name in SKIP_LISTS)
        self.skipped = tuple(name for names in lists for name in listed(names))
        self.names = StoredNames()
        self.has_head = bool(self.config.get(HEAD, False))

    def read_headers(self, headers: Iterable[TensorHeader]) -> None:
        """Take the file's names, and see which layers it has in full precision."""
        self.names = StoredNames(headers)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint is not of this method. `query` is a ModelSpec or None."""
        method = stored_method(query)
        if query is None or method in cls.stored_as:
            return []
        return [f"the checkpoint is {f'stored as {method}' if method else 'not quantized'}"]

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the method of a layer. Heads and routers are usually not quantized."""
        from dovetail_plugins.layers.stored.matrix_linear import plain_linear
        from dovetail_plugins.layers.stored.stored_linear import StoredLinear

        layout = self.mixed(spec) or (None if self.is_plain(spec) else self.layout(spec))
        if layout is None:
            return plain_linear(spec, activations=self.activations)
        return StoredLinear(
            layout.tensors,
            layout.weight,
            activations=self.activations,
            has_own_rows=self.has_own_rows,
        )

    def mixed(self, spec: LinearSpec) -> StorageLayout | None:
        """Return the layout of a fused layer whose parts are stored differently; None if the parts
        are alike, or the file itself stores them as one."""
        from dovetail_plugins.layers.stored.mixed_layout import MixedLayout, PlainLayout

        names = fused_parts(spec.name)
        if len(names) != len(spec.out_sizes) or len(names) < 2 or not self.names.has_all(names):
            return None
        parts = (replace(spec, name=name, out_sizes=(size,), is_gated=False)
                 for name, size in zip(names, spec.out_sizes, strict=True))  # fmt: skip
        layouts = tuple((None if self.is_plain(one) else self.layout(one)) or PlainLayout()
                        for one in parts)  # fmt: skip
        is_one = all(one == layouts[0] for one in layouts)
        return None if is_one else MixedLayout(layouts, spec)

    def is_plain(self, spec: LinearSpec) -> bool:
        """Return whether the checkpoint holds the layer in full precision: from its tensors or, if
        those are unknown, its lists."""
        stored = self.names.is_plain(spec.name)
        if stored is not None:
            return stored
        is_head = spec.name.rpartition(".")[2] == HEAD
        if is_head and not self.has_head:
            return True
        return spec.name.endswith(ROUTERS) or is_listed(spec.name, self.skipped, self.names.matched)

    @abstractmethod
    def layout(self, spec: LinearSpec) -> StorageLayout | None:
        """Return how a layer is stored; None: in full precision. Raises: ConfigError"""

    def refuse(self, what: str) -> ConfigError:
        """Return the error for a config that is not read."""
        return ConfigError(what, where=self.where)


class CheckpointMethod(StoredMethod):
    """All layers are stored in one way."""

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the method itself."""
        return self

    @abstractmethod
    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tensors that a layer is stored in."""

    @abstractmethod
    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix that the tensors of one part mean. Raises: ConfigError"""
