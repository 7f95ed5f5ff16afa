"""All2All: how tokens come to the ranks that hold their experts, and what these make of them back.

For ranks that have different tokens: those of different engines. The ranks of one engine have the
same tokens and need no exchange. Shape letters: T tokens of this rank, N tokens that it computes, A
experts picked for each, E hidden size.
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
"""Takes x [N, E], weights [N, A] and slots [N, A], -1 for what is not computed here; returns the
weighted sum of what the experts in those slots make of each token, [N, E]. N may be 0."""


class All2All(Plugin):
    """One rank's part in exchanges over a group. One thread calls it, and all ranks of the group
    make the same calls in the same order, those without tokens too."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, group: Communicator) -> None:
        """Exchange over this group, whose ranks have all joined."""

    def begin_step(self, num_tokens: int) -> None:
        """Note that a step begins, with as many tokens here in each of its exchanges. The default
        needs to know nothing."""

    @abstractmethod
    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return the weighted sums of what the picked experts make of this rank's tokens.

        An expert's place is its rank times `num_slots`, the slots of each rank, plus its slot
        there; -1 is a pick that no rank of this group computes. Every rank calls `compute` for the
        picks of all ranks that are in its own slots.
        Shapes: x [T, E], weights [T, A] float32, places [T, A] int64 -> [T, E]
        """
