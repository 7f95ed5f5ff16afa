"""DividedModel: the ranks of a tensor group as threads of one process, each with its part of a
model.

For tests that hold divided layers to undivided ones without processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dovetail.interfaces.communicator import Membership
from dovetail.interfaces.data.spec import RankSpec
from dovetail.parallel import groups
from dovetail_testing.harness import PagedModel, StagedModel, load_model
from support.divided_attention import LIMIT_S, Meeting, ThreadCommunicator


class DividedModel:
    """`size` ranks; `forward` returns the logits that all of them have."""

    def __init__(self, path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        meeting = Meeting(size)
        self.ranks = []
        for number in range(size):
            member = Membership(rank=number, size=size, address="")
            link = ThreadCommunicator(meeting, member)
            monkeypatch.setitem(groups._joined, groups.TENSOR, link)
            rank = RankSpec(rank=number, world_size=size, tensor_rank=number, tensor_size=size)
            self.ranks.append(PagedModel(load_model(path, rank=rank)))

    def forward(self, batch: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Return the logits of all given tokens (see PagedModel.forward)."""
        return self._on_all(lambda rank: rank.forward(batch))

    def hidden(self, batch: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """Return what the ranks make of all given tokens (see PagedModel.hidden)."""
        return self._on_all(lambda rank: [rank.hidden(batch)])[0]

    def _on_all(self, run: Callable[[PagedModel], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return what all ranks compute, at the same time and alike."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            runs = [pool.submit(run, rank) for rank in self.ranks]
            first, *others = [run.result(LIMIT_S) for run in runs]
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        return first


def divided_both_ways(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[DividedModel, StagedModel]:
    """Return a checkpoint of two layers on two ranks, and in two stages."""
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 1))
    return DividedModel(path, 2, monkeypatch), staged
