"""MediaItem: one medium as a request asks for it; and what it is once it is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.media_settings import AUDIO, AUDIO_EMBEDS, IMAGE, IMAGE_EMBEDS, MediaLimit

if TYPE_CHECKING:
    import numpy
    import torch

_MODALITY = {IMAGE_EMBEDS: IMAGE, AUDIO_EMBEDS: AUDIO}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One medium of a prompt: `url` (http, https, data or file), or `data` in base64 (of
    embeddings: by name, where there are several tensors).

    `where` is its place in the request, for errors; `format` what the client calls its data;
    `detail` how closely the client wants an image to be seen; `uuid` the client's name of it.
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
        """Return as which modality it counts, and which word a chat template reads."""
        return _MODALITY.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """An image. Shapes: pixels [height, width, 3] uint8, red first, not transparent"""

    pixels: numpy.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sound:
    """A sound of one channel. Shapes: samples [S] float32. Units: from -1 to 1, S at `rate_hz`"""

    samples: numpy.ndarray[Any, Any]
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """Frames of a video, with their places among its `num_frames`, of which `fps` are a second.

    Shapes: frames [F, height, width, 3] uint8
    """

    frames: numpy.ndarray[Any, Any]
    frame_indices: tuple[int, ...]
    num_frames: int
    fps: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """What an encoder would make of a medium, by the names the client gave; EMBEDS where it gave
    none. Every number is finite."""

    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """A medium of which only its uuid was sent: the server has seen it, or the request fails."""


Decoded = Image | Sound | Video | Embeddings | Named


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedMedium:
    """An item and what it is. `digest` is the same for the same bytes decoded by the same options,
    whatever URL they came from."""

    item: MediaItem
    content: Decoded
    digest: str


EMBEDS = "embeds"


def invalid(item: MediaItem, what: str, fix: str | None = None) -> RequestError:
    """Return the error for a medium that cannot be used."""
    return RequestError(what, where=item.where, fix=fix, code="media_invalid")


def check_counts(items: Sequence[MediaItem], limits: Mapping[str, MediaLimit]) -> None:
    """Raise RequestError where a request holds more media of a modality than it may."""
    num_by_modality: dict[str, int] = {}
    for item in items:
        modality = item.modality
        num = num_by_modality[modality] = num_by_modality.get(modality, 0) + 1
        most = limits.get(modality, MediaLimit()).count
        if most is not None and num > most:
            word = {IMAGE: "images", AUDIO: "sounds"}.get(modality, "videos")
            raise RequestError(
                f"at most {most} {word} may be in one request (--limit-mm-per-prompt).",
                where=item.where,
                code="too_many_media",
            )
