"""Token and position embeddings. The token table is sharded over ranks by vocabulary.

Token ids are assumed to be in the vocabulary or added by their row's adapter: requests are checked
before they are queued.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.adapters.tables import TableSlots
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import linear_spec
from dovetail.layers.linear.placement import Part, Placement, WeightHolder, mark_axes, place_parts
from dovetail.layers.native import runs_natively
from dovetail.layers.opaque import is_traced
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import Group, tensor_group
from dovetail_kernels.embedding import OP
from dovetail_kernels.embedding.native import LookUp

SCALED_ROWS = 1024
"""Maximum number of looked-up rows that are scaled natively; recorded steps have fewer."""
_ORDER = torch.arange(SCALED_ROWS)


def vocab_part(vocab_size: int, group: Group) -> Part:
    """Return this rank's rows of a vocabulary table; the last rank's share may be padded."""
    local = -(-vocab_size // group.size)
    return Part(name="", full=vocab_size, local=local, start=group.rank * local)


class VocabParallelEmbedding(WeightHolder):
    """Rows of the token table of this rank. Shapes: weight [V of this rank, E]

    `head` names the layer that multiplies by the same table. Then the quantization method stores
    it, if it can look rows up, and it is in memory once. Without a head the method does so for
    tables that the checkpoint stores quantized; `name` is set for tables other than the token
    table. `factor` multiplies the looked-up rows.
    """

    def __init__(
        self,
        context: BuildContext,
        vocab_size: int,
        size: int,
        *,
        head: str | None = None,
        name: str = "",
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.group = tensor_group(context.rank)
        self.part = vocab_part(vocab_size, self.group)
        self.size = size
        self.factor = factor
        self.adapters: TableSlots | None = None
        self._native: LookUp | None = None
        self._scale: LookUp | None = None
        self.spec = linear_spec(context, head or name, size, (self.part.local,))
        quant = context.quant
        method = quant.linear(self.spec) if head is not None else quant.table(self.spec)
        self.method = method if method is not None and method.looks_up else None
        if self.method is not None:
            self.method.create(self, self.spec)
            if factor != 1.0 and runs_natively(OP, context):
                self._scale = LookUp(dtype_of(self.spec.dtype), factor=factor)
            return
        dtype_name = (
            self.spec.dtype if head is not None else self.spec.weight_dtype or self.spec.dtype
        )
        empty = torch.empty(
            self.part.local, size, dtype=dtype_of(dtype_name), device=context.device
        )
        self.weight = mark_axes(nn.Parameter(empty, requires_grad=False), output=0, input=None)
        if runs_natively(OP, context):
            self._native = LookUp(empty.dtype, first=self.part.start, factor=factor)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors, whole on every rank. Shapes: token_ids [T] -> [T, E]"""
        if self.adapters is None:
            return self._vectors(token_ids)
        found = self._vectors(self.adapters.known(token_ids))
        return self.adapters.vectors(token_ids, found, self.factor)

    def _vectors(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the table's own vectors. Shapes: token_ids [T] -> [T, E]"""
        if self._native is not None and not is_traced():
            rows = self._native(token_ids.contiguous(), self.weight)
            return rows if self.group.size == 1 else all_reduce(rows, self.group)
        if self.group.size == 1:
            return self._rows(token_ids)
        return all_reduce(self._part_rows(token_ids), self.group)

    def _part_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of this rank's tokens, zeros for others. Shapes: [T] -> [T, E]"""
        first = self.part.start
        if self.method is not None:
            found = self.method.part_rows(self, token_ids, first)
            if found is not None:
                return self._scaled(found)
        local = token_ids - first
        is_foreign = (local < 0) | (local >= self.part.local)
        rows = self._rows(local.masked_fill(is_foreign, 0))
        return rows.masked_fill(is_foreign.unsqueeze(-1), 0)

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        if self.method is not None:
            found = self.method.rows(self, index)
        else:
            found = F.embedding(index, self.weight).to(dtype_of(self.spec.dtype))
        return self._scaled(found)

    def _scaled(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows times the factor. Shapes: [T, E] -> [T, E]"""
        if self.factor == 1.0:
            return rows
        if self._scale is None or len(rows) > SCALED_ROWS or is_traced():
            return rows * self.factor
        return self._scale(_ORDER[: len(rows)], rows)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden times the table, for a head that shares it. Shapes: [S, E] -> [S, V]"""
        if self.method is not None:
            return self.method.apply(self, hidden, None)
        return F.linear(hidden, self.weight)

    def finish(self) -> None:
        """Let the quantization method repack the table. Mutates: self"""
        if self.method is not None:
            self.method.finish(self)

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where the checkpoint tensor goes (see WeightHolder)."""
        parameter = self._parameters.get(leaf)
        return None if parameter is None else place_parts(leaf, parameter, (self.part,), part, None)

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece of the table."""
        return {""}


class PositionEmbedding(nn.Module):
    """A vector per position, replicated on every rank: learned, or from a fixed `table` that no
    checkpoint has. `offset` rows precede position 0. Shapes: table [offset + positions, E]"""

    weight: torch.Tensor

    def __init__(
        self,
        context: BuildContext,
        num_positions: int,
        size: int,
        *,
        offset: int = 0,
        table: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.offset = offset
        self.dtype = dtype_of(context.model.dtype)
        dtype = dtype_of(context.model.weight_dtype or context.model.dtype)
        if table is None:
            empty = torch.empty(num_positions + offset, size, dtype=dtype, device=context.device)
            self.weight = nn.Parameter(empty, requires_grad=False)
        else:
            self.register_buffer("weight", table.to(context.device, dtype), persistent=False)
        is_native = runs_natively(OP, context)
        self._native = LookUp(dtype, first=-offset) if is_native else None

    def forward(self, positions: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
        """Return the positions' vectors, added to `onto` if given, which may change.

        Shapes: positions [T], onto [T, E] contiguous -> [T, E]
        """
        if self._native is not None and not is_traced():
            return self._native(positions.contiguous(), self.weight, onto=onto)
        found = F.embedding(positions + self.offset, self.weight).to(self.dtype)
        return found if onto is None else onto + found
