"""Steps whose ranks exchange tensors by torch's process groups are not recorded: a repeated one
would leave the exchange out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dovetail import registry
from dovetail.interfaces.communicator import Membership
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.cpu.program import NotRecordable, Pool, record

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")


def test_a_sum_by_gloo_is_not_recorded(tmp_path: Path) -> None:
    member = Membership(rank=0, size=1, address=f"file://{tmp_path / 'meeting'}")
    alone = registry.make(registry.choose("communicator", "gloo"), member)
    x = torch.ones(4)
    try:
        with pytest.raises(NotRecordable, match="torch's process group"):
            record(lambda: alone.all_reduce(x), Pool())
        assert alone.all_reduce(x).tolist() == [1.0] * 4
    finally:
        alone.close()
