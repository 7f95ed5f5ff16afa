"""PromptPart: an image, audio or ready vectors in a prompt, among its tokens.

A part names its content by a hash, says which prompt positions take the vectors that a model's
encoder makes of it, and carries the features that the encoder reads. The scheduler sees keys and
positions, never pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.interfaces.data.media_settings import (
    AUDIO,
    AUDIO_EMBEDS,
    IMAGE,
    IMAGE_EMBEDS,
    MediaSettings,
)

if TYPE_CHECKING:
    import torch

VECTORS = "vectors"
"""The kind of parts that are already vectors: no encoder reads them."""


READY = "vectors"
"""The name of the only feature of a part that is already vectors, whatever its kind."""
KEPT = "kept_rows"
"""The name of the feature that selects the rows of an encoding to keep, if not all are kept."""


class Feature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor as plain data: its numbers in native byte order, with `dtype` as torch names it
    ("float32")."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def is_ready(features: Sequence[Feature]) -> bool:
    """Return whether features are already vectors."""
    return [one.name for one in features] == [READY]


class PartPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position of a part in a prompt.

    `runs` are pairs (first position, number of positions), in order. They take the rows of the
    encoding of `key` one after another. An encoder-decoder's encoder input has no position: it has
    `num_rows` rows but no runs. `shape` (time, height, width in positions) is for models with
    multi-dimensional positions. `times` is the offset of each step in time from the first one
    (empty: one position a step). `kept` says which places of the shape have a row (empty: all).
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
        """Return its first position, 0 if it has none."""
        return self.runs[0][0] if self.runs else 0

    @property
    def end(self) -> int:
        """Return the position after its last one, 0 if it has none."""
        return sum(self.runs[-1]) if self.runs else 0

    def moved(self, num_positions: int) -> PartPlace:
        """Return the place moved back by `num_positions` positions."""
        runs = tuple((start + num_positions, count) for start, count in self.runs)
        return msgspec.structs.replace(self, runs=runs)


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request: its place, and the features from which an encoder makes its vectors."""

    place: PartPlace
    features: tuple[Feature, ...]

    @property
    def is_ready(self) -> bool:
        """Return whether it is already vectors, which no encoder reads."""
        return is_ready(self.features)


class Encode(msgspec.Struct, frozen=True, array_like=True):
    """Encode a content: `num_rows` vectors, stored under its key.

    If several steps share an encoder pass, each of them has an Encode: the first one carries the
    features, and `share` is how much of the pass must be done after the step, 1 in the last one.
    """

    key: str
    kind: str
    num_rows: int
    features: tuple[Feature, ...]
    share: float = 1.0


def encoder_rows(places: Iterable[PartPlace]) -> int:
    """Return how many encoder rows a decoder attends to besides its tokens."""
    return sum(place.num_rows for place in places if not place.runs)


class ReadMedium(msgspec.Struct, frozen=True, kw_only=True):
    """A medium after reading. `text` represents it in a prompt; `num_rows` of its tokens take the
    vectors. For `shape`, `times` and `kept` see PartPlace."""

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
    """The `kinds` of media that a model takes, and how to read them: the `options` of its
    processor, how many bytes of processed media are cached (in shared memory: in `shared_folder`,
    at most `cache_item_bytes` per item), and the `settings` of media sources. `adapters` are used
    for prompts with media of a kind whose request names no adapter. `interleaves`: if a chat
    template reads only text, media stay at their places in it. `pruning_rate` is the share of a
    video's vectors to drop."""

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
        """Return the kinds of parts that messages may contain: media, and their precomputed
        encodings."""
        embeds = {IMAGE: IMAGE_EMBEDS, AUDIO: AUDIO_EMBEDS}
        return frozenset(self.kinds) | {embeds[kind] for kind in self.kinds if kind in embeds}


def feature_of(name: str, tensor: torch.Tensor) -> Feature:
    """Return a CPU tensor as plain data."""
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
