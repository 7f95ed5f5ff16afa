"""Quantization: how a linear layer's weight is stored and multiplied.

A QuantMethod reads the checkpoint's own quantization config and gives each linear layer a
LinearMethod, which creates the parameters, finishes them after loading, and multiplies.
Shape letters: I input features, O output features of this rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer, TensorHeader
from dovetail.interfaces.data.spec import ModelSpec, RunSpec
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.matrix import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """One linear layer as this rank sees it.

    `name` is its dotted path in the checkpoint's naming. `out_sizes` are the parts fused along the
    output (q, k, v or gate, up), already divided by the ranks. `full_in_size` is the number of
    inputs of all ranks if they are divided (row-parallel), 0 if each rank has all. `dtype` is that
    of activations and bias; `weight_dtype` is the type in which a kernel that supports it may store
    the weight (see ModelSpec). `is_gated`: only `apply_gated` is ever called, with an activation
    that kernels know.
    """

    name: str
    in_size: int
    out_sizes: tuple[int, ...]
    dtype: str
    device: str
    weight_dtype: str = ""
    full_in_size: int = 0
    is_gated: bool = False

    @property
    def out_size(self) -> int:
        """Return O."""
        return sum(self.out_sizes)

    @property
    def is_input_divided(self) -> bool:
        """Return whether this rank has only some of the inputs."""
        return self.full_in_size > self.in_size

    def has_groups(self, group: int) -> bool:
        """Return whether the inputs of all ranks are several groups of this size, not one."""
        return 0 < group < max(self.full_in_size, self.in_size)

    def num_groups(self, group: int) -> int:
        """Return how many groups of `group` inputs this rank has, the last maybe shorter; 1 if one
        group covers all inputs, as it does when `group` is not positive.

        Raises: ConfigError if a group's inputs are on several ranks.
        """
        if not self.has_groups(group):
            return 1
        if self.is_input_divided and self.in_size % group:
            raise ConfigError(
                f"{self.name}: the inputs of a group are on several ranks, which have "
                f"{self.in_size} each and groups of {group}.",
                where="--tensor-parallel-size",
                fix="use fewer ranks, or a checkpoint with smaller groups.",
            )
        return -(-self.in_size // group)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of the checkpoint that stores a linear layer, as this rank holds it.

    `output_axis` and `input_axis` run along O and I, however many outputs or inputs one entry
    covers; None: not divided. If a rank has one entry along `input_axis`, the checkpoint may have
    one for all ranks. `is_per_part`: each of the fused matrices has one of this `shape` (a scale of
    the whole matrix, an order of its inputs). `parts` are the numbers of the fused matrices that it
    holds; None: all. `default` fills a tensor that a checkpoint may lack; None: it must be there.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    output_axis: int | None = None
    input_axis: int | None = None
    is_per_part: bool = False
    parts: tuple[int, ...] | None = None
    default: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedActivation:
    """An activation: its name among kernels ("" for one they do not know), and its function."""

    name: str
    function: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(NamedActivation):
    """The activation of a gated layer. `halves`, if given, computes act(first half) * second half
    of rows in one call. `of_experts`: its name among expert kernels, if they know one that products
    do not; `limit` is the clamp of that one."""

    halves: Callable[[torch.Tensor], torch.Tensor] | None = None
    of_experts: str = ""
    limit: float = 0.0

    def joined(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the layer's output from both halves. Shapes: gate_up [T, 2F] -> [T, F]"""
        if self.halves is not None:
            return self.halves(gate_up)
        first, second = gate_up.chunk(2, dim=-1)
        return self.function(first) * second


def weight_tensor(spec: LinearSpec, dtype: str) -> StoredTensor:
    """Return a full-precision `weight` [O, I]."""
    shape = (spec.out_size, spec.in_size)
    return StoredTensor(name="weight", shape=shape, dtype=dtype, output_axis=0, input_axis=1)


class LinearMethod(ABC):
    """Weights of one linear layer, one object per layer.

    Tensors are the layer's parameters, or its buffers once they are repacked. `looks_up` says that
    `rows` works, so an embedding and a head can share the weight.
    """

    looks_up: ClassVar[bool] = False

    def stored(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tensors that a checkpoint stores the layer in: a `weight` [O, I]."""
        return (weight_tensor(spec, spec.dtype),)

    def matrix(self, tensors: Mapping[str, torch.Tensor], spec: LinearSpec) -> Matrix | None:
        """Return loaded tensors in the form that a kernel multiplies; None if torch multiplies
        them. For layers with many matrices in one parameter, such as experts. `tensors` are as in
        `stored`."""
        return None

    @abstractmethod
    def create(self, layer: torch.nn.Module, spec: LinearSpec) -> None:
        """Register empty parameters on the layer, with the attributes that `layers.weights` needs
        to fill them: `output_axis`, `input_axis` (None: not divided). Mutates: layer"""

    def finish(self, layer: torch.nn.Module) -> None:
        """Repack the parameters once all are loaded. Mutates: layer"""

    @abstractmethod
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I], bias [O] -> [T, O]"""

    def apply_add(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        """Return residual + x W^T + bias, in one pass if a kernel can.
        Shapes: x [T, I], residual [T, O] -> [T, O]
        Mutates: residual, if the result overwrites it (layers/residual.py)"""
        return residual + self.apply(layer, x, bias)

    def halves(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T, for a gated layer both halves side by side and without an activation. For
        adapters, not for speed. Shapes: x [T, I] -> [T, O]"""
        return self.apply(layer, x, None)

    def apply_activated(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        activation: NamedActivation,
    ) -> torch.Tensor:
        """Return act(x W^T + bias), in one pass if a kernel can.
        Shapes: x [T, I], bias [O] or [T, O] -> [T, O]"""
        return activation.function(self._plus(layer, x, bias))

    def apply_gated(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor:
        """Return act(first half) * second half of x W^T + bias, in one pass if a kernel can.
        Shapes: x [T, I], W [2F, I], bias [2F] or [T, 2F] -> [T, F]"""
        return gate.joined(self._plus(layer, x, bias))

    def _plus(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return x W^T + bias, one bias or one per row. Shapes: bias [O] or [T, O] -> [T, O]"""
        if bias is None or bias.dim() == 1:
            return self.apply(layer, x, bias)
        return self.apply_add(layer, x, None, bias)

    def part_rows(
        self, layer: torch.nn.Module, index: torch.Tensor, first: int
    ) -> torch.Tensor | None:
        """Return rows as `rows` does, of a W whose first row has the number `first`, with zeros for
        rows it does not have; None (the default) if no kernel does that. Shapes: [T] int64 -> [T,
        I]"""
        return None

    def rows(self, layer: torch.nn.Module, index: torch.Tensor) -> torch.Tensor:
        """Return rows of W in the activations' dtype. Shapes: index [T] int64 -> [T, I]"""
        raise NotImplementedError(f"{type(self).__name__} does not look rows up")


class QuantMethod(Plugin):
    """A way to store weights. `why_not(ModelSpec)` says which checkpoints it cannot read.

    `ignored` are suffixes of tensor names that a checkpoint may contain and that are not needed;
    `stored_as` are the names that checkpoints give the method in their config.
    """

    interface_version: ClassVar[int] = 2
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "from_checkpoint": "reads weights that a checkpoint stores quantized",
        "while_loading": "quantizes a full-precision checkpoint while it loads",
    }

    ignored: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec) -> None:
        """Read the checkpoint's quantization config. Raises: ConfigError when it is malformed."""

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return a checkpoint's tensors with the names and layout of `LinearMethod.stored`. They
        are unchanged, unless some can only be read together. May be a generator; each tensor is
        whole, not divided over ranks."""
        return tensors

    def read_headers(self, headers: Iterable[TensorHeader]) -> None:
        """Receive the headers of the checkpoint's tensors before the first `linear`. Not called if
        its files have no headers. Mutates: self"""

    @abstractmethod
    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the method for one linear layer (an unquantized one for unquantized layers)."""

    def loading(self, run: RunSpec) -> AbstractContextManager[Callable[[Any], None] | None]:
        """Return what surrounds building and filling a model whose layers are to run: a method may
        restore what it has made of them before. The model is passed to what it yields, if anything,
        when it is filled. The default does nothing."""
        return nullcontext()

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the memory that a checkpoint's layer takes, from headers and without torch; None:
        the same as in the files. `packs`: products read packed weights (4 bits stay 4 bits;
        otherwise they take a byte)."""
        return None

    def table(self, spec: LinearSpec) -> LinearMethod | None:
        """Return the method for a lookup table that no head shares; the token table if the spec has
        no name.

        None, the default: the checkpoint holds it in full precision.
        """
        return None


def stored_method(query: Any) -> str | None:
    """Return the method that config.json says the checkpoint was stored with, "?" for an unnamed
    one, or None. `query` is a ModelSpec or None."""
    config = query.hf_config.get("quantization_config") if query is not None else None
    if not config:
        return None
    return str(config.get("quant_method", "?")) if isinstance(config, dict) else "?"
