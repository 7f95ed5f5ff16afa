"""PromptPart: what stands in a prompt beside tokens: an image, a sound, ready vectors.

A part names its content by a hash, says which positions of the prompt take the vectors that a
model's encoder makes of it, and carries the features that the encoder reads. Whoever plans steps
sees keys and positions, never pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.interfaces.media_settings import (
    AUDIO,
    AUDIO_EMBEDS,
    IMAGE,
    IMAGE_EMBEDS,
    MediaSettings,
)

if TYPE_CHECKING:
    import torch

VECTORS = "vectors"
"""The kind of parts that are vectors already: no encoder reads them."""


READY = "vectors"
"""The name of the one feature of a part that is vectors already, whatever its kind."""
KEPT = "kept_rows"
"""The name of the feature that says which rows of an encoding are kept, where not all are."""


class Feature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor as plain data: its numbers in this machine's byte order, `dtype` as torch names it
    ("float32")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def is_ready(features: Sequence[Feature]) -> bool:
    """Return whether features are vectors already."""
    return [one.name for one in features] == [READY]


class PartPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a part stands in a prompt.

    `runs` are pairs (first position, number of positions), in order, which take the rows of the
    encoding of `key` one after another. What an encoder-decoder's encoder reads stands at no
    position: it has no runs, and `num_rows` rows all the same. `shape` is what a model with
    positions in several directions must know of it (time, height, width in positions), `times` how
    far each of its steps in time lies behind the first one (empty: one position a step), `kept`
    which places of its shape have a row (empty: all).
    """

    key: str
    kind: str
    runs: tuple[tuple[int, int], ...]
    num_rows: int
    shape: tuple[int, ...] = ()
    times: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """Return the first of its positions, 0 where it has none."""
        return self.runs[0][0] if self.runs else 0

    @property
    def end(self) -> int:
        """Return the position behind its last one, 0 where it has none."""
        return sum(self.runs[-1]) if self.runs else 0

    def moved(self, num_positions: int) -> PartPlace:
        """Return the place so many positions further back."""
        runs = tuple((start + num_positions, count) for start, count in self.runs)
        return msgspec.structs.replace(self, runs=runs)


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request: its place, and the features that an encoder makes its vectors of."""

    place: PartPlace
    features: tuple[Feature, ...]

    @property
    def is_ready(self) -> bool:
        """Return whether it is vectors already, which no encoder reads."""
        return is_ready(self.features)


class Encode(msgspec.Struct, frozen=True, array_like=True):
    """Make the vectors of a content: `num_rows` of them, kept under its key.

    A pass of the encoder that several steps compute is told in each of them: the first one brings
    the features, and `share` is how much of it is to be behind it then, 1 in the last one.
    """

    key: str
    kind: str
    num_rows: int
    features: tuple[Feature, ...]
    share: float = 1.0


def encoder_rows(places: Iterable[PartPlace]) -> int:
    """Return how many rows an encoder makes of what a decoder attends to beside its tokens."""
    return sum(place.num_rows for place in places if not place.runs)


class ReadMedium(msgspec.Struct, frozen=True, kw_only=True):
    """A medium as read. `text` stands for it in a prompt, `num_rows` tokens of which take its
    vectors; `shape`, `times` and `kept` are as PartPlace has them."""

    text: str
    num_rows: int
    features: tuple[Feature, ...]
    shape: tuple[int, ...] = ()
    times: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Return the size of its features."""
        return sum(len(feature.data) for feature in self.features)


class MediaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The `kinds` of media that a model takes and how they are read: `options` of its processor,
    how many bytes of what that has made are kept (in shared memory: in `shared_folder`, of one item
    at most `cache_item_bytes`), and `settings` of where media come from. `adapters` are those that
    prompts with media of a kind use whose request names none. `interleaves`: where a chat template
    reads text alone, media keep their places in it. `pruning_rate` is the share of a video's
    vectors that is left out."""

    kinds: tuple[str, ...]
    options: dict[str, Any] = {}
    cache_bytes: int = 0
    cache_item_bytes: int = 0
    shared_folder: str = ""
    settings: MediaSettings = MediaSettings()
    interleaves: bool = False
    adapters: dict[str, str] = {}
    pruning_rate: float = 0.0

    @property
    def part_kinds(self) -> frozenset[str]:
        """Return the kinds of parts that messages may have: media, and what an encoder would make
        of them."""
        embeds = {IMAGE: IMAGE_EMBEDS, AUDIO: AUDIO_EMBEDS}
        return frozenset(self.kinds) | {embeds[kind] for kind in self.kinds if kind in embeds}


def feature_of(name: str, tensor: torch.Tensor) -> Feature:
    """Return a tensor of the CPU as plain data."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    kind = str(tensor.dtype).removeprefix("torch.")
    return Feature(name, kind, tuple(tensor.shape), flat.numpy().tobytes())


def tensor_of(feature: Feature) -> torch.Tensor:
    """Return the tensor of a feature, on the CPU."""
    import torch

    dtype = getattr(torch, feature.dtype)
    if not feature.data:
        return torch.empty(feature.shape, dtype=dtype)
    return torch.frombuffer(bytearray(feature.data), dtype=dtype).reshape(feature.shape)
