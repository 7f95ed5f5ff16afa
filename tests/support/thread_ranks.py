"""DividedModel: the ranks of a tensor group as threads of one process, each with its part of a
model.

For tests that hold divided layers to undivided ones without processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dovetail.interfaces.communicator import Membership
from dovetail.interfaces.spec import RankSpec
from dovetail.parallel import groups
from dovetail.testing.harness import PagedModel, load_model
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
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            runs = [pool.submit(rank.forward, batch) for rank in self.ranks]
            first, *others = [run.result(LIMIT_S) for run in runs]
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        return first
