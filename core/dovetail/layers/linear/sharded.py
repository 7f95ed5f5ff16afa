"""Linear layers over the ranks of a tensor group: replicated, column-parallel, row-parallel.

The weights belong to the quantization plugin's LinearMethod; a layer here only knows this rank's
part of the matrix. Shape letters: I input, O output features.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.quantization import Gate, LinearSpec
from dovetail.layers.activation import gate, named_activation
from dovetail.layers.adapters.linear import LinearSlots, in_use
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.joints import Joint, held_rows
from dovetail.layers.linear.placement import (
    Part,
    Placement,
    WeightHolder,
    held_parts,
    is_per_part,
    mark_axes,
    parameter_of,
    place_parts,
    place_rows,
)
from dovetail.parallel.collectives import all_gather, all_reduce
from dovetail.parallel.groups import Group, tensor_group

GROUPS = "groups"
FOUR_BLOCKS = "four_blocks"
"""The names of joints of queries, keys and values (see QKVParallelLinear)."""
NO_JOINTS: Mapping[str, Joint] = MappingProxyType({})


class Linear(WeightHolder):
    """The base of all linear layers. `name` is the layer's dotted path in the checkpoint. `joints`
    are the checkpoint tensors that hold several of its parts, by their weight-map name.
    `no_adapters` is why adapters cannot change it, for a weight used for more than the layer's
    product with a step's tokens ("": they can)."""

    no_adapters: str = ""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        parts: tuple[Part, ...],
        *,
        bias: bool,
        joints: Mapping[str, Joint] = NO_JOINTS,
        is_input_split: bool = False,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.parts = parts
        self.joints = joints
        self.group = tensor_group(context.rank)
        self.full_in_size = in_size
        self.is_input_split = is_input_split
        self.spec = linear_spec(
            context,
            name,
            self.group.share(in_size, f"{name} input") if is_input_split else in_size,
            tuple(p.local for p in parts),
            full_in_size=in_size if is_input_split else 0,
            is_gated=is_gated,
        )
        self.method = context.quant.linear(self.spec)
        self.method.create(self, self.spec)
        self.bias = self._build_bias() if bias else None
        self.adapters: LinearSlots | None = None

    def _build_bias(self) -> nn.Parameter:
        return empty_bias(self.spec)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias for this rank's outputs. Shapes: x [T, I] -> [T, O]"""
        if (adapters := in_use(self.adapters)) is not None:
            return adapters.product(self, x, self.bias)
        return self.method.apply(self, x, self.bias)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes (see WeightHolder)."""
        leaf = parameter_of(self._parameters, leaf, part, self.parts)
        parameter = self._parameters.get(leaf)
        if parameter is None:
            return None
        joint = None if part is None else self.joints.get(part)
        if joint is not None:
            return self._place_joint(leaf, parameter, joint)
        return place_parts(leaf, parameter, self.parts, part, self._input_cut())

    def _place_joint(
        self, leaf: str, parameter: nn.Parameter, joint: Joint
    ) -> list[Placement] | None:
        """Return the placements of a tensor of several parts, None if the parameter lacks some."""
        parts = held_parts(parameter, self.parts)
        if not set(joint) <= {part.name for part in parts}:
            return None
        if is_per_part(parameter):  # one number for all applies to each
            apart = (self.place(leaf, name) or [] for name in joint)
            return [placement for placements in apart for placement in placements]
        local = sum(part.local for part in parts)
        rows = list(held_rows(parts, joint))
        return place_rows(leaf, parameter, local, rows, self._input_cut())

    def pieces(self, leaf: str) -> set[str]:
        """Return one piece per fused part that the parameter holds."""
        return {p.name for p in held_parts(self.get_parameter(leaf), self.parts)}

    def finish(self) -> None:
        """Let the quantization method repack its parameters. Mutates: self"""
        self.method.finish(self)

    def extra_repr(self) -> str:
        """Return the sizes for print(model)."""
        return f"{self.spec.in_size} -> {self.spec.out_sizes}, bias={self.bias is not None}"

    def _input_cut(self) -> tuple[int, int, int] | None:
        if not self.is_input_split or self.group.size == 1:
            return None
        size = self.spec.in_size
        return self.group.rank * size, size, self.full_in_size


class ReplicatedLinear(Linear):
    """The whole matrix on every rank."""

    def __init__(
        self, context: BuildContext, name: str, in_size: int, out_size: int, *, bias: bool = False
    ) -> None:
        part = Part(name="", full=out_size, local=out_size, start=0)
        super().__init__(context, name, in_size, (part,), bias=bias)


class ColumnParallelLinear(Linear):
    """Outputs sharded over ranks; each rank returns its own outputs unless `gathers`."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        out_size: int,
        *,
        bias: bool = False,
        gathers: bool = False,
    ) -> None:
        part = even_part("", out_size, tensor_group(context.rank), name)
        super().__init__(context, name, in_size, (part,), bias=bias)
        self.gathers = gathers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I] -> [T, O], all outputs if it gathers"""
        out = super().forward(x)
        return all_gather(out, self.group) if self.gathers else out


class MergedActivatedLinear(Linear):
    """Several column-parallel matrices in one, followed by an activation."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        parts: tuple[Part, ...],
        *,
        act: str,
        bias: bool = False,
        joints: Mapping[str, Joint] = NO_JOINTS,
    ) -> None:
        super().__init__(context, name, in_size, parts, bias=bias, joints=joints)
        self.activation = named_activation(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return act(x W^T + bias) for this rank's outputs. Shapes: x [T, I] -> [T, O]"""
        if (adapters := in_use(self.adapters)) is not None:
            return adapters.activated(self, x, self.bias, self.activation)
        return self.method.apply_activated(self, x, self.bias, self.activation)


class ActivatedLinear(MergedActivatedLinear):
    """A column-parallel matrix followed by an activation."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        out_size: int,
        *,
        act: str,
        bias: bool = False,
    ) -> None:
        part = self._outputs(context, name, out_size)
        super().__init__(context, name, in_size, (part,), act=act, bias=bias)

    def _outputs(self, context: BuildContext, name: str, size: int) -> Part:
        """Return this rank's outputs."""
        return even_part("", size, tensor_group(context.rank), name)


class ReplicatedActivatedLinear(ActivatedLinear):
    """The whole matrix on every rank, followed by an activation."""

    def _outputs(self, context: BuildContext, name: str, size: int) -> Part:
        return Part(name="", full=size, local=size, start=0)


class MergedColumnParallelLinear(Linear):
    """Several column-parallel matrices in one, e.g. gate and up. `parts` maps name to size."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        parts: dict[str, int],
        *,
        bias: bool = False,
    ) -> None:
        group = tensor_group(context.rank)
        merged = tuple(even_part(n, size, group, f"{name}.{n}") for n, size in parts.items())
        super().__init__(context, name, in_size, merged, bias=bias)


class GatedLinear(Linear):
    """Gate and up in one column-parallel matrix; returns act(gate) * up. `inner` is F."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        inner: int,
        *,
        act: str | Gate,
        bias: bool = False,
    ) -> None:
        group = tensor_group(context.rank)
        parts = tuple(even_part(n, inner, group, f"{name}.{n}") for n in ("gate", "up"))
        # A product without support for the activation returns both halves for it.
        known = act if isinstance(act, Gate) else gate(act, context)
        super().__init__(context, name, in_size, parts, bias=bias, is_gated=bool(known.name))
        self.gate = known

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, I] -> [T, F of this rank]"""
        if (adapters := in_use(self.adapters)) is not None:
            return adapters.gated(self, x, self.bias, self.gate)
        return self.method.apply_gated(self, x, self.bias, self.gate)


class QKVParallelLinear(Linear):
    """Queries, keys and values in one matrix, sharded by heads.

    With more ranks than kv heads, each kv head is on several ranks. A checkpoint tensor for the
    part GROUPS has, for each kv head, the query heads that use it, its key and its value. One for
    FOUR_BLOCKS has the queries, the values, then the keys of each quarter of the heads. `holds` is
    "q" if keys and values are another layer's, "qk" if keys are values too.
    """

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        bias: bool = False,
        holds: str = "qkv",
    ) -> None:
        group = tensor_group(context.rank)
        self_heads, kv_heads = split_heads(group, num_heads, num_kv_heads, name)
        q = even_part("q", num_heads * head_size, group, name)
        kv_start = group.rank * num_kv_heads // group.size * head_size
        full, local = num_kv_heads * head_size, kv_heads * head_size
        k, v = (Part(name=n, full=full, local=local, start=kv_start) for n in "kv")
        of_group, of_block = num_heads // num_kv_heads * head_size, num_heads // 4 * head_size
        joints: dict[str, Joint] = {
            GROUPS: {"q": of_group, "k": head_size, "v": head_size},
            FOUR_BLOCKS: dict.fromkeys("qvk", of_block),
            **self.joints_behind(head_size),
        }
        own = tuple(part for part in (q, k, v) if part.name in holds)
        parts = (*own, *self.parts_behind(q))
        super().__init__(context, name, in_size, parts, bias=bias, joints=joints)
        self.num_heads, self.num_kv_heads = self_heads, kv_heads

    def parts_behind(self, q: Part) -> tuple[Part, ...]:
        """Return further parts of the matrix after queries, keys and values; none here."""
        return ()

    def joints_behind(self, head_size: int) -> Mapping[str, Joint]:
        """Return the joints that hold some of these parts; none here."""
        return NO_JOINTS

    def forward_split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k, v of this rank's heads. Shapes: x [T, I] -> [T, H*D], [T, K*D], [T, K*D]"""
        q, k, v = self.forward(x).split(self.spec.out_sizes, dim=-1)
        return q, k, v


class RowParallelLinear(Linear):
    """Inputs sharded over ranks; the partial results are summed, with the bias added on rank 0."""

    def __init__(
        self, context: BuildContext, name: str, in_size: int, out_size: int, *, bias: bool = False
    ) -> None:
        part = Part(name="", full=out_size, local=out_size, start=0)
        super().__init__(context, name, in_size, (part,), bias=bias, is_input_split=True)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the whole x W^T + bias (+ residual) on every rank.

        Shapes: x [T, I of this rank], residual [T, O] -> [T, O]
        Mutates: residual, on a GPU (layers/residual.py)
        """
        if (adapters := in_use(self.adapters)) is not None:
            is_first = self.group.rank == 0
            bias, residual = (self.bias, residual) if is_first else (None, None)
            return all_reduce(adapters.product(self, x, bias, residual), self.group)
        if self.group.rank > 0:  # only one rank adds the bias, which is not sharded
            return all_reduce(self.method.apply(self, x, None), self.group)
        if residual is not None:
            return all_reduce(self.method.apply_add(self, x, self.bias, residual), self.group)
        return all_reduce(self.method.apply(self, x, self.bias), self.group)


def attention_linears(
    context: BuildContext,
    name: str,
    *,
    qkv_bias: bool,
    out_bias: bool,
    qkv_class: type[QKVParallelLinear] = QKVParallelLinear,
) -> tuple[QKVParallelLinear, RowParallelLinear]:
    """Return the matrices before and after the attention of a layer, for the model's heads."""
    model = context.model
    qkv = qkv_class(
        context,
        f"{name}.qkv_proj",
        model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        bias=qkv_bias,
    )
    width = model.num_heads * model.head_size
    out = RowParallelLinear(context, f"{name}.o_proj", width, model.hidden_size, bias=out_bias)
    return qkv, out


def linear_spec(
    context: BuildContext,
    name: str,
    in_size: int,
    out_sizes: tuple[int, ...],
    *,
    full_in_size: int = 0,
    is_gated: bool = False,
) -> LinearSpec:
    """Return the spec of this rank's matrix for a quantization method."""
    return LinearSpec(
        name=name,
        in_size=in_size,
        out_sizes=out_sizes,
        dtype=context.model.dtype,
        weight_dtype=context.model.weight_dtype,
        device=context.device,
        full_in_size=full_in_size,
        is_gated=is_gated,
    )


def empty_bias(spec: LinearSpec) -> nn.Parameter:
    """Return an uninitialized bias, one number per output. Shapes: [O]"""
    empty = torch.empty(spec.out_size, dtype=dtype_of(spec.dtype), device=spec.device)
    return mark_axes(nn.Parameter(empty, requires_grad=False), output=0, input=None)


def even_part(name: str, size: int, group: Group, what: str) -> Part:
    """Return this rank's equal share of `size` outputs. Raises: ConfigError if uneven."""
    local = group.share(size, f"{what} output")
    return Part(name=name, full=size, local=local, start=group.rank * local)


def split_heads(group: Group, num_heads: int, num_kv_heads: int, where: str) -> tuple[int, int]:
    """Return this rank's (query heads, kv heads). Raises: ConfigError when they do not divide."""
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"{num_heads} query heads are not a multiple of {num_kv_heads} kv heads.", where=where
        )
    heads = group.share(num_heads, f"{where} heads")
    if num_kv_heads >= group.size:
        return heads, group.share(num_kv_heads, f"{where} kv heads")
    if group.size % num_kv_heads:
        raise ConfigError(
            f"{num_kv_heads} kv heads cannot be repeated evenly over {group.size} ranks.",
            where="--tensor-parallel-size",
        )
    return heads, 1
