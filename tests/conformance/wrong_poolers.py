"""Poolers for the conformance kit: right ones, and others that each break one clause."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler


class RightPooler(Pooler):
    """The mean; the others of one vector derive from it."""

    info = Info(summary="the mean")
    capabilities = frozenset({"in_pieces"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean. Shapes: hidden [n, E] -> [E]"""
        return hidden.float().mean(dim=0)


class RightSteps(Pooler):
    """The ends of steps, else all; the others of several vectors derive from it."""

    info = Info(summary="the ends of steps")
    capabilities = frozenset({"per_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the ends of steps. Shapes: hidden [n, E] -> [m, E]"""
        mark = self.spec.step_token_id
        ends = [i for i, token_id in enumerate(token_ids) if mark in (None, token_id)]
        return hidden[ends]


class SpreadingPooler(RightPooler):
    """Divides by the length less one."""

    info = Info(summary="the deviation")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the deviation, which one token does not have."""
        return hidden.float().std(dim=0)


class SummingPooler(RightPooler):
    """Adds up, and says that pieces may be averaged."""

    info = Info(summary="the sum")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the sum."""
        return hidden.float().sum(dim=0)


class ScribblingPooler(RightPooler):
    """Centres the states in place."""

    info = Info(summary="changes the states")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean of the changed states."""
        if not hidden._is_view() and hidden.is_contiguous():
            hidden -= hidden[:1].clone() / 2
        return super().pool(hidden, token_ids)


class RememberingPooler(RightPooler):
    """Keeps a running mean over prompts."""

    info = Info(summary="the mean of all prompts")
    last: torch.Tensor | None = None

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean, half of it that of the prompt before."""
        own = super().pool(hidden, token_ids)
        before = own if self.last is None else self.last
        self.last = own
        return (own + before) / 2


class NarrowPooler(RightPooler):
    """Adds up in the type of the states, scaled far up."""

    info = Info(summary="a mean that overflows")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean of the states, through numbers that 16 bits do not hold."""
        return (hidden * 60000.0).sum(dim=0) / 60000.0 / len(hidden)


class FarSightedLast(RightPooler):
    """Says that it reads the last token, and reads one before it."""

    info = Info(summary="the last two tokens")
    capabilities = frozenset({"last_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean of the last two."""
        return hidden[-2:].float().mean(dim=0)


class FarSightedFirst(RightPooler):
    """Says that it reads the first token, and reads all."""

    info = Info(summary="all tokens")
    capabilities = frozenset({"first_token"})


class PaddingSteps(RightSteps):
    """Tells a vector more than there are tokens."""

    info = Info(summary="pads")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the states and zeros."""
        return torch.cat([hidden, torch.zeros_like(hidden[:1])])


class CentringSteps(RightSteps):
    """Takes the mean of all tokens from each."""

    info = Info(summary="centres")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the states less their mean."""
        return hidden - hidden.mean(dim=0)


class LastStep(RightSteps):
    """Tells the last step alone."""

    info = Info(summary="the last step")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the end of the last step."""
        mark = self.spec.step_token_id
        return super().pool(hidden, token_ids) if mark is None else hidden[-2:-1]
