"""Settings of media in prompts: their kinds, their limits, and how they are decoded.

Plain data, made from flags by `config.rules.media_settings`, and sent to every process that reads
media.
"""

from __future__ import annotations

import msgspec

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
IMAGE_EMBEDS, AUDIO_EMBEDS = "image_embeds", "audio_embeds"
MODALITIES = (IMAGE, VIDEO, AUDIO)
KINDS = (*MODALITIES, IMAGE_EMBEDS, AUDIO_EMBEDS)
"""The kinds of parts in a message. Embeddings count as their modality."""

MIB = 1 << 20


class MediaLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one request for a modality; None: not limited by the operator.

    Units: width and height in pixels, num_frames of a video, length in samples of audio
    """

    count: int | None = None
    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    length: int | None = None


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an image is decoded: the background of transparent pixels, and the pixel limit."""

    rgba_background_color: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 1 << 26


class VideoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video are used: `num_frames` at equal distances, or fewer if `fps` frames
    per second are fewer; -1 uses all. `max_pixels` bounds all used frames together."""

    num_frames: int = 32
    fps: float | None = None
    max_pixels: int = 1 << 27


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How audio is decoded: to which rate (None: its own), and how long it may be."""

    sampling_rate: int | None = None
    max_seconds: float = 3600.0


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How media are decoded, with a field for each modality."""

    image: ImageOptions = ImageOptions()
    video: VideoOptions = VideoOptions()
    audio: AudioOptions = AudioOptions()


def _default_bytes() -> dict[str, int]:
    return {IMAGE: 64 * MIB, VIDEO: 512 * MIB, AUDIO: 25 * MIB}


def _default_timeouts() -> dict[str, float]:
    return {IMAGE: 5.0, VIDEO: 30.0, AUDIO: 10.0}


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Allowed sources of media, their limits, and how they are decoded.

    `local_path` is the folder that file: URLs may access; None: no files. `domains` are the hosts
    that URLs may name; empty: any host whose addresses are public. `limits`, `fetch_timeouts_s` and
    `max_bytes` are by modality.
    """

    local_path: str | None = None
    domains: tuple[str, ...] = ()
    allows_redirects: bool = True
    limits: dict[str, MediaLimit] = msgspec.field(default_factory=dict)
    options: MediaOptions = MediaOptions()
    fetch_timeouts_s: dict[str, float] = msgspec.field(default_factory=_default_timeouts)
    max_bytes: dict[str, int] = msgspec.field(default_factory=_default_bytes)
