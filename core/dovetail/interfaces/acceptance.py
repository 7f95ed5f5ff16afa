"""Acceptance: with what probability a draft is accepted, and what is drawn instead if it is not.

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
    """The distributions that a worker drafter sampled its drafts from."""

    def of(self, row: int, drafts: Sequence[int]) -> Sequence[torch.Tensor] | None:
        """Return the distribution that each of a row's drafts was sampled from, given the drafts
        before it. The random numbers must be used for nothing else. None: the drafts were not
        sampled.

        `drafts` are this step's: the last proposed ones, or only the first of them. Shapes: n or
        more of [V] float32, each sums to 1
        """


class Acceptance(Plugin):
    """One stateless object per runner.

    It is not used for greedy requests: their drafts are accepted if they are the most likely token.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        EXACT: "what is drawn has the model's distribution, whatever the drafts; it is not asked "
        "about drafts that were not sampled: there a token is drawn as without a draft, and the "
        "draft stands if it is that token",
    }

    def __init__(self, options: Any) -> None:
        """Store the options. Raises: ConfigError"""
        self.options = options

    @property
    def is_exact(self) -> bool:
        """Return whether it preserves the model's distribution."""
        return EXACT in self.capabilities

    @abstractmethod
    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return the probability of accepting each draft, 0 to 1.

        `p` is the distribution the model would sample from: after penalties, masks, temperature and
        filters. `q` is the distribution the drafts were sampled from (None: they were not). Both
        are read-only.
        Shapes: p [K, V] float64, drafts [K] int64, q [K, V] float32 -> [K]
        """

    @abstractmethod
    def residual(
        self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the unnormalized weights from which to draw in place of rejected drafts. None:
        draw from p, exactly as without a draft. If all weights of a row are 0, p is used too.
        Shapes: as in `chance`, for the rejected drafts only -> [K, V], not negative"""
