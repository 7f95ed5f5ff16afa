"""MediaItem: one medium of a request, and its decoded forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import (
    AUDIO,
    AUDIO_EMBEDS,
    IMAGE,
    IMAGE_EMBEDS,
    MediaLimit,
)

if TYPE_CHECKING:
    import numpy
    import torch

_MODALITY = {IMAGE_EMBEDS: IMAGE, AUDIO_EMBEDS: AUDIO}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One medium of a prompt: `url` (http, https, data or file), or `data` in base64 (for
    embeddings a mapping by name if there are several tensors).

    `where` is its place in the request, for errors; `format` the client's name of its data format;
    `detail` the resolution the client requests for an image; `uuid` the client's name for it.
    """

    kind: str
    where: str
    url: str | None = None
    data: str | Mapping[str, str] | None = None
    format: str | None = None
    detail: str | None = None
    uuid: str | None = None

    @property
    def modality(self) -> str:
        """Return the modality that it counts as, which is also the word for chat templates."""
        return _MODALITY.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """An image. Shapes: pixels [height, width, 3] uint8, RGB, not transparent"""

    pixels: numpy.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sound:
    """A sound of one channel. Shapes: samples [S] float32. Units: from -1 to 1, S at `rate_hz`"""

    samples: numpy.ndarray[Any, Any]
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """Frames of a video, with their indices among its `num_frames` frames at `fps` per second.

    Shapes: frames [F, height, width, 3] uint8
    """

    frames: numpy.ndarray[Any, Any]
    frame_indices: tuple[int, ...]
    num_frames: int
    fps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """An encoder's output for a medium, by the client's tensor names; EMBEDS if it gave none. Every
    number is finite."""

    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """A medium sent only as a uuid: the server has seen it before, or the request fails."""


Decoded = Image | Sound | Video | Embeddings | Named


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedMedium:
    """An item and its decoded content. `digest` is the same for the same bytes decoded with the
    same options, whatever their URL."""

    item: MediaItem
    content: Decoded
    digest: str


EMBEDS = "embeds"


def invalid(item: MediaItem, what: str, fix: str | None = None) -> RequestError:
    """Return the error for a medium that cannot be used."""
    return RequestError(what, where=item.where, fix=fix, code="media_invalid")


def check_counts(items: Sequence[MediaItem], limits: Mapping[str, MediaLimit]) -> None:
    """Raise RequestError if a request has more media of a modality than allowed."""
    num_by_modality: dict[str, int] = {}
    for item in items:
        modality = item.modality
        num = num_by_modality[modality] = num_by_modality.get(modality, 0) + 1
        max_items = limits.get(modality, MediaLimit()).count
        if max_items is not None and num > max_items:
            word = {IMAGE: "images", AUDIO: "sounds"}.get(modality, "videos")
            raise RequestError(
                f"at most {max_items} {word} may be in one request (--limit-mm-per-prompt).",
                where=item.where,
                code="too_many_media",
            )
