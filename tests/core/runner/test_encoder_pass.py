"""EncoderPass: a pass in pieces ends with the bits of one that is not divided."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from dovetail.layers.media import blocks_of
from dovetail.runner.media.encoder_pass import EncoderPass, pause_before
from support.inside import is_computing


class Tower(nn.Module):
    """Five blocks, the third of which fails for what is negative."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.num_done = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        x = self.first(x)
        for block in self.inner.blocks:
            x = block(x)
            self.num_done += 1
            if self.num_done == 3 and x.isnan().any():
                raise ValueError("it is not a picture")
        return x


@pytest.fixture
def tower() -> Tower:
    made = Tower()
    blocks = blocks_of(made)
    assert blocks == list(made.inner.blocks)
    pause_before(blocks)
    return made


def test_it_stops_where_it_is_told(tower: Tower) -> None:
    x = torch.rand(3, 4)
    with torch.inference_mode():
        wanted = tower(x)
    tower.num_done = 0
    running = EncoderPass(lambda: tower(x), nullcontext)
    done = []
    for until in (1, 1, 3, None, None):
        running.advance(until)
        done.append(tower.num_done)
    assert done == [1, 1, 3, 5, 5]
    assert running.num_begun == 5
    assert torch.equal(running.result(), wanted)


def test_what_it_raises_is_told_at_its_end(tower: Tower) -> None:
    running = EncoderPass(lambda: tower(torch.full((1, 4), torch.nan)), nullcontext)
    for until in (2, 4, None):
        running.advance(until)
    with pytest.raises(ValueError, match="it is not a picture"):
        running.result()


def test_one_that_is_dropped_computes_no_more(tower: Tower) -> None:
    running, unused = (EncoderPass(lambda: tower(torch.rand(3, 4)), nullcontext) for _ in range(2))
    running.advance(2)
    running.drop()
    unused.drop()
    assert not is_computing(running)
    assert tower.num_done == 2
