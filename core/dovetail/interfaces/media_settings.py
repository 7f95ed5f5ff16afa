"""What is said of media in prompts before any is read: their kinds, their limits, how they decode.

Plain data, made of flags by `config.rules.media_settings`, and sent to every process that reads
media.
"""

from __future__ import annotations

import msgspec

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
IMAGE_EMBEDS, AUDIO_EMBEDS = "image_embeds", "audio_embeds"
MODALITIES = (IMAGE, VIDEO, AUDIO)
KINDS = (*MODALITIES, IMAGE_EMBEDS, AUDIO_EMBEDS)
"""What a part of a message may hold. Embeddings count as their modality."""

MIB = 1 << 20


class MediaLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one request may hold of a modality; None: no limit of the operator's.

    Units: width and height in pixels, num_frames of a video, length in samples of a sound
    """

    count: int | None = None
    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    length: int | None = None


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an image is decoded: what lies behind what is transparent, and its most pixels."""

    rgba_background_color: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 1 << 26


class VideoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video are taken: `num_frames` at equal distances, fewer where `fps` a
    second are fewer; -1 takes all. `max_pixels` bounds all taken frames together."""

    num_frames: int = 32
    fps: float | None = None
    max_pixels: int = 1 << 27


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a sound is decoded: to which rate (None: its rate), and how long it may be."""

    sampling_rate: int | None = None
    max_seconds: float = 3600.0


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How media are decoded, a field for each modality."""

    image: ImageOptions = ImageOptions()
    video: VideoOptions = VideoOptions()
    audio: AudioOptions = AudioOptions()


def _default_bytes() -> dict[str, int]:
    return {IMAGE: 64 * MIB, VIDEO: 512 * MIB, AUDIO: 25 * MIB}


def _default_timeouts() -> dict[str, float]:
    return {IMAGE: 5.0, VIDEO: 30.0, AUDIO: 10.0}


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where media may come from, how much of them, and how they are decoded.

    `local_path` is the folder that file: URLs may name files of; None: no files. `domains` are the
    hosts that URLs may name; empty: any host whose addresses are public. `limits`,
    `fetch_timeouts_s` and `max_bytes` are by modality.
    """

    local_path: str | None = None
    domains: tuple[str, ...] = ()
    allows_redirects: bool = True
    limits: dict[str, MediaLimit] = msgspec.field(default_factory=dict)
    options: MediaOptions = MediaOptions()
    fetch_timeouts_s: dict[str, float] = msgspec.field(default_factory=_default_timeouts)
    max_bytes: dict[str, int] = msgspec.field(default_factory=_default_bytes)
