"""Adapter slots of a token table, or of a head over the vocabulary, replicated on each rank.

Adapters may add tokens: ids after the model's vocabulary, which are each adapter's own. If adapters
in a step add tokens, its logits are wider by the maximum of them; a row has -inf in columns that
its adapter does not have. Shape letters: S rows, T tokens, V the vocabulary of the model, A the
maximum added tokens of an adapter in the step, E hidden size, r rank, m tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.layers.context import StepAdapters, step_adapters

NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One adapter's change of a table. A `weight` replaces the whole table, `rows` the rows of the
    tokens `ids` (ascending; ids from V on are added tokens). The product of `first` and `second` is
    added to all of it. A `prompt` replaces the first tokens' vectors.

    Shapes: first [V or more, r], second [r, E], weight [V, E], ids [m] int64, rows [m, E], prompt
    [n, E]
    """

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    ids: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    prompt: torch.Tensor | None = None

    def num_added(self, vocab_size: int) -> int:
        """Return how many tokens it adds to a vocabulary."""
        return 0 if self.ids is None else int((self.ids >= vocab_size).sum())

    def on(self, device: torch.device) -> TableChange:
        """Return the change on a device."""
        tensors = ((one.name, getattr(self, one.name)) for one in fields(self))
        return TableChange(**{name: t.to(device) for name, t in tensors if t is not None})


class TableSlots(nn.Module):
    """The adapters of one table of `vocab_size` rows, by slot."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._changes: dict[int, TableChange] = {}

    def put(self, slot: int, change: TableChange | None) -> None:
        """Put a change into a slot, or empty it. Mutates: self"""
        self._changes.pop(slot, None)
        if change is not None:
            self._changes[slot] = change

    def known(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the token ids to look up in the table itself: added ones become 0, and `vectors`
        fills theirs in. Shapes: token_ids [T] -> [T]"""
        step = step_adapters()
        if step is None or not step.num_added:
            return token_ids
        return torch.where(token_ids < self.vocab_size, token_ids, 0)

    def vectors(self, token_ids: torch.Tensor, found: torch.Tensor, factor: float) -> torch.Tensor:
        """Return the tokens' vectors with each one's adapter; `found` are the table's own.

        Shapes: token_ids [T], found [T, E] -> [T, E]
        """
        step = step_adapters()
        if step is None or step.is_low_rank:
            return found
        for slot, change in self._changes.items():
            at = (step.slots == slot).nonzero().flatten()
            if len(at):
                own = self._vectors(change, token_ids[at], found[at], factor)
                found = found.index_copy(0, at, own)
        return found if step.positions is None else self._prompted(found, step)

    def _vectors(
        self, change: TableChange, ids: torch.Tensor, found: torch.Tensor, factor: float
    ) -> torch.Tensor:
        """Return the vectors with one adapter. Shapes: ids [T], found [T, E] -> [T, E]"""
        if change.weight is not None:
            known = ids.clamp(max=len(change.weight) - 1)
            found = F.embedding(known, change.weight).to(found) * factor
        if change.ids is not None and change.rows is not None:
            places = torch.searchsorted(change.ids, ids).clamp(max=len(change.ids) - 1)
            is_own = (change.ids[places] == ids).unsqueeze(1)
            found = torch.where(is_own, change.rows[places].to(found) * factor, found)
        if change.first is not None and change.second is not None:
            size = len(change.first)
            own = F.embedding(ids.clamp(max=size - 1), change.first).to(found)
            own = own.masked_fill((ids >= size).unsqueeze(1), 0.0)
            found = found + own @ change.second.to(found) * factor
        return found

    def _prompted(self, found: torch.Tensor, step: StepAdapters) -> torch.Tensor:
        """Return the vectors, with prompt vectors put in. Shapes: [T, E] -> [T, E]"""
        assert step.positions is not None
        for slot, change in self._changes.items():
            if change.prompt is not None:
                is_before = (step.slots == slot) & (step.positions < len(change.prompt))
                at = is_before.nonzero().flatten()
                own = change.prompt[step.positions[at]].to(found)
                found = found.index_copy(0, at, own)
        return found

    def logits(self, hidden: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the logits with each row's adapter; `found` are the head's own.

        Shapes: hidden [S, E], found [S, V] -> [S, V + A]
        """
        step = step_adapters()
        if step is None:
            return found
        if step.num_added:
            found = F.pad(found, (0, step.num_added), value=NEVER)
        for slot, change in self._changes.items():
            at = (step.slots == slot).nonzero().flatten()
            if len(at):
                found = found.index_copy(0, at, self._logits(change, hidden[at], found[at]))
        return found

    def _logits(
        self, change: TableChange, hidden: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits with one adapter. Shapes: hidden [S, E], found [S, V + A] -> [S, V +
        A]. Mutates: found"""
        if change.weight is not None:
            size = len(change.weight)
            found[:, :size] = F.linear(hidden, change.weight.to(hidden)).to(found)
        if change.ids is not None and change.rows is not None:
            own = F.linear(hidden, change.rows.to(hidden)).to(found)
            found.index_copy_(1, change.ids, own)
        if change.first is not None and change.second is not None:
            inner = hidden @ change.second.to(hidden).t()
            own = (inner @ change.first.to(hidden).t()).to(found)
            found[:, : own.shape[1]] += own
        return found
