"""RunnerMedia: what cannot be encoded ends its request, whichever stage tells results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import nn

from dovetail.interfaces.data.media import Encode, feature_of
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.model import Model
from dovetail.runner.device import HostDevice
from dovetail.runner.endings.stage_link import HandOnEnd
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.media.runner_media import RunnerMedia
from dovetail_testing.tiny.transformer import tiny_run
from support.inside import encoded_in, failures_in, passes_of


class Encoder(nn.Module):
    """Encodes ones alone."""

    def __init__(self, takes_media: bool) -> None:
        super().__init__()
        self.takes_media = takes_media
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(4))

    def encoder_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[torch.Tensor]:
        if any(not one["pixels"].eq(1).all() for one in features):
            raise ValueError("it shows something")
        for block in self.blocks:
            block(torch.zeros(1))
        return [torch.ones(2, 4) for _ in features]


def media_of(stage: int, *, takes_media: bool = True) -> Any:
    rank = RankSpec(world_size=2, rank=stage, num_stages=2, stage=stage, stage_layers=(1, 1))
    run = msgspec.structs.replace(tiny_run(), rank=rank)
    made: Any = RunnerMedia(run, torch.device("cpu"), HostDevice(), HandOnEnd())
    made.attach(LoadedModel(model=cast(Model, Encoder(takes_media)), build_s=0, weights_s=0))
    made.allocate(SimpleNamespace(batch=None))
    contents = [("good", torch.ones(3)), ("bad", torch.zeros(3))]
    encode = tuple(
        Encode(key, "image", 2, (feature_of("pixels", pixels),)) for key, pixels in contents
    )
    made.follow(StepPlan(step_id=0, rows=(), encode=encode))
    return made


@pytest.mark.parametrize(("stage", "is_told"), [(0, False), (1, True)])
def test_one_that_fails_ends_its_request_alone(stage: int, is_told: bool) -> None:
    media = media_of(stage)
    assert encoded_in(media)["good"].eq(1).all()
    assert "it shows something" in failures_in(media)["bad"]
    assert encoded_in(media)["bad"].isnan().all() != is_told


def test_stages_that_take_none_make_none() -> None:
    assert encoded_in(media_of(1, takes_media=False)) == {}


def test_pieces_of_a_pass() -> None:
    """The last one brings the encoding, or the reason why there is none."""
    media = media_of(1)
    kept = encoded_in(media)["good"]
    for key, value in (("whole", 1.0), ("broken", 0.0)):
        features = (feature_of("pixels", torch.full((3,), value)),)
        for share in (0.3, 0.6, 1.0):
            piece = Encode(key, "image", 2, features if share == 0.3 else (), share)
            media.follow(StepPlan(step_id=0, rows=(), encode=(piece,)))
            assert (key in encoded_in(media)) == (share == 1)
    assert torch.equal(encoded_in(media)["whole"], kept)
    assert "it shows something" in failures_in(media)["broken"]
    assert not passes_of(media)
