"""Acceptance: by what chance a draft stands where the model would have drawn, and what else does.

Pure functions of two distributions, the model's and the draft's; core draws the random numbers.
Shape letters: K drafts, V vocabulary. Imports torch for type checking only. Source: Leviathan et
al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch


EXACT = "exact"


class DraftProbabilities(Protocol):
    """What a drafter that runs on the worker knows of its drafts."""

    def of(self, row: int, drafts: Sequence[int]) -> Sequence[torch.Tensor] | None:
        """Return the distributions that a row's drafts were sampled from, each after those before
        it, by random numbers that nothing else uses; None: the drafts were not sampled.

        `drafts` are those of this step, the first of those last proposed or fewer. Shapes: n
        or more of [V] float32, each adds up to 1
        """


class Acceptance(Plugin):
    """One object per runner, without a state between calls.

    It is not asked about greedy requests: there a draft stands if it is the most likely token.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        EXACT: "what is drawn has the model's distribution, whatever the drafts; it is not asked "
        "about drafts that were not sampled: there a token is drawn as without a draft, and the "
        "draft stands if it is that token",
    }

    def __init__(self, options: Any) -> None:
        """Keep the options. Raises: ConfigError"""
        self.options = options

    @property
    def is_exact(self) -> bool:
        """Return whether it leaves the distribution as it is."""
        return EXACT in self.capabilities

    @abstractmethod
    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return the probability by which each draft is accepted, 0 to 1.

        `p` is what the model would draw from: after penalties, masks, temperature and filters; `q`
        is what the drafts were sampled from (None: they were not). Neither may be changed.
        Shapes: p [K, V] float64, drafts [K] int64, q [K, V] float32 -> [K]
        """

    @abstractmethod
    def residual(
        self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return what is drawn from in place of drafts that were not accepted, as weights of any
        sum; None: p, by the very draw that there would have been without a draft.

        Where all of a row's weights are 0 it is p, too.
        Shapes: as in `chance`, for these drafts alone -> [K, V], nothing below 0
        """
