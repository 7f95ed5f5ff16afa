"""All2All: sends tokens to the ranks that hold their experts, and returns the experts' outputs.

For ranks with different tokens, those of different engines. The ranks of one engine have the same
tokens and need no exchange. Shape letters: T tokens of this rank, N tokens that it computes, A
experts selected for each, E hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.communicator import Communicator
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch

Compute = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Takes x [N, E], weights [N, A] and slots [N, A] (-1: not computed here). Returns the weighted sum
of the outputs of the experts in those slots, [N, E]. N may be 0."""


class All2All(Plugin):
    """One rank's endpoint for exchanges over a group. One thread calls it. All ranks of the group
    make the same calls in the same order, also ranks without tokens."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, group: Communicator) -> None:
        """Exchange over this group, which all ranks have already joined."""

    def begin_step(self, num_tokens: int) -> None:
        """Announce a step with `num_tokens` tokens on this rank in each of its exchanges. The
        default does nothing."""

    @abstractmethod
    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return the weighted sums of the selected experts' outputs for this rank's tokens.

        An expert's place is its rank times `num_slots` (slots per rank) plus its slot there; -1 is
        a selection that no rank of this group computes. Every rank calls `compute` for the
        selections of all ranks that fall in its own slots.
        Shapes: x [T, E], weights [T, A] float32, places [T, A] int64 -> [T, E]
        """
