"""Media inside a model: inserts their vectors, and rotates by time, height and width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import nn

from dovetail.interfaces.data.media import PartPlace
from dovetail.layers.attention.rotary import Rope, RopeSettings, Rotary
from dovetail.layers.context import step_media

SECTIONS = "mrope_section"
"""The config.json field with the number of pairs for time, height and width."""


def blocks_of(encoder: nn.Module) -> list[nn.Module]:
    """Return the blocks of an encoder, between which a pass may pause: the members of its outermost
    module lists."""
    found: list[nn.Module] = []
    for child in encoder.children():
        found += child if isinstance(child, nn.ModuleList) else blocks_of(child)
    return found


def with_media(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return the input of the first layer with media vectors, divided by `scale`, inserted.

    Shapes: x [T, E] -> [T, E]. May change x.
    """
    media = step_media()
    if media is None or not len(media.places):
        return x
    vectors = media.vectors[:, : x.shape[1]].to(x.dtype)
    return x.index_copy_(0, media.places, vectors if scale == 1.0 else vectors / scale)


def with_deep_media(x: torch.Tensor, layer: int) -> torch.Tensor:
    """Return the output of a layer with the encoder's vectors for it added at media positions: they
    follow the vectors for the first layer's input. Shapes: x [T, E] -> [T, E]. May change x.

    Source: Meng et al., DeepStack, 2024.
    """
    media = step_media()
    size = x.shape[1]
    if media is None or media.vectors.shape[1] < (layer + 2) * size:
        return x
    vectors = media.vectors[:, (layer + 1) * size : (layer + 2) * size]
    return x.index_add_(0, media.places, vectors.to(x.dtype))


class SpatialRotary(Rotary):
    """A rotation whose pairs follow time, height or width, if a step has such positions.

    `directions` has the dimension (0 to 2) of each pair. Shapes: directions [size / 2]
    Source: Wang et al., Qwen2-VL, 2024, section 2.1.
    """

    def __init__(self, settings: RopeSettings, device: str) -> None:
        super().__init__(settings, device)
        directions = _directions(settings).to(device)
        self.register_buffer("directions", directions, persistent=False)

    def forward(self, positions: torch.Tensor) -> Rope:
        """Return the rotations of a step's tokens. Shapes: positions [T]"""
        media = step_media()
        if media is None or media.positions is None:
            return super().forward(positions)
        at = self.rows_of(media.positions)[self.get_buffer("directions")].T  # [T, size / 2]
        cos, sin = self.get_buffer("cos").gather(0, at), self.get_buffer("sin").gather(0, at)
        return Rope(torch.arange(len(positions), device=positions.device), cos, sin)


def is_spatial(settings: RopeSettings) -> bool:
    """Return whether a checkpoint's rotation has pairs for three dimensions."""
    return bool(settings.values.get(SECTIONS))


def _directions(settings: RopeSettings) -> torch.Tensor:
    """Return the dimension of each pair: in sections, or alternating if interleaved, with the
    remaining pairs following time. Shapes: [size / 2]"""
    sections = [int(count) for count in settings.values[SECTIONS]]
    if not settings.values.get("mrope_interleaved"):
        return torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    directions = torch.zeros(settings.size // 2, dtype=torch.int64)
    for direction in (1, 2):
        directions[direction : 3 * sections[direction] : 3] = direction
    return directions


def spatial_positions(num_tokens: int, parts: Sequence[PartPlace]) -> tuple[torch.Tensor, int]:
    """Return the positions of a prompt in time, height and width, and the offset from token index
    to position after the prompt.

    A part of (t, h, w) positions starts at the next position; its frames have a run each or share
    one. Text after it continues past the longer of height and width, even if a video's times reach
    further (as in transformers). If only some places of a part remain, they use their positions in
    the full part. Shapes: [3, num_tokens] int64
    """
    found = torch.empty(3, num_tokens, dtype=torch.int64)
    place = position = 0
    for part in parts:
        times, height, width = part.shape or (1, 1, part.num_rows)
        frames = times // len(part.runs)
        rows = iter(part.kept or range(part.num_rows))
        for run, (start, count) in enumerate(part.runs):
            found[:, place:start] = torch.arange(start - place) + position
            position += start - place
            steps = part.times if len(part.times) == frames else range(frames)
            ways = (torch.tensor(list(steps)), torch.arange(height), torch.arange(width))
            grid = torch.stack(torch.meshgrid(*ways, indexing="ij")).flatten(1)
            cells = torch.tensor([*islice(rows, count)]) - run * grid.shape[1]
            found[:, start : start + count] = grid[:, cells] + position
            place, position = start + count, position + max(height, width)
    found[:, place:] = torch.arange(num_tokens - place) + position
    return found, position - place
