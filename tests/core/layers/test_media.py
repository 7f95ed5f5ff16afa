"""Positions of prompts with pictures, in time, height and width."""

from __future__ import annotations

import torch

from dovetail.interfaces.data.media import PartPlace
from dovetail.layers.media import spatial_positions


def test_text_alone_counts_in_all_directions() -> None:
    found, shift = spatial_positions(4, ())
    assert found.tolist() == [[0, 1, 2, 3]] * 3
    assert shift == 0


def test_a_picture_takes_as_many_positions_as_its_longer_side() -> None:
    place = PartPlace("a", "image", ((2, 6),), 6, (1, 2, 3))
    found, shift = spatial_positions(10, (place,))
    assert found[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]
    assert found[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]
    assert found[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    assert shift == -3  # the token at place 10 has position 7


def test_frames_in_runs_of_their_own() -> None:
    place = PartPlace("a", "video", ((1, 4), (6, 4)), 8, (2, 2, 2))
    found, _ = spatial_positions(11, (place,))
    assert torch.equal(found[0], torch.tensor([0, 1, 1, 1, 1, 3, 4, 4, 4, 4, 6]))


def test_what_is_left_of_a_video_keeps_its_positions() -> None:
    whole = PartPlace("a", "video", ((1, 4), (6, 4)), 8, (2, 2, 2))
    left = PartPlace("a", "video", ((1, 4), (6, 2)), 6, (2, 2, 2), (), (0, 1, 2, 3, 5, 6))
    found, shift = spatial_positions(11, (whole,))
    pruned, less_shift = spatial_positions(9, (left,))
    assert torch.equal(pruned, found[:, [0, 1, 2, 3, 4, 5, 7, 8, 10]])
    assert less_shift == shift + 2
