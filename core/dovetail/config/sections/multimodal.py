"""MultiModalConfig: images, sound and video in prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiModalConfig:
    """Images, sound and video."""

    limit_mm_per_prompt: Mapping[str, Any] = flag(
        {},
        kind="modality",
        help="maximum number of media items per request, as MODALITY: NUMBER, or MODALITY: LIMITS "
        "(count, width, height, num_frames, length)",
    )
    media_io_kwargs: Mapping[str, Any] = flag(
        {}, kind="modality", help="how media are decoded, as MODALITY: OPTIONS"
    )
    mm_processor_kwargs: Mapping[str, Any] = flag({}, help="options of the model's media processor")
    mm_processor_cache_gb: float = flag(
        4.0,
        ge=0,
        unit="GiB",
        help="memory for cached, already processed media; 0 turns the cache off",
    )
    mm_processor_cache_type: str = flag(
        "lru", kind="mm_cache", help="where processed media are cached"
    )
    mm_shm_cache_max_object_size_mb: int = flag(
        128, ge=1, unit="MiB", help="maximum size of one item in a media cache in shared memory"
    )
    mm_encoder_tp_mode: str = flag(
        "weights",
        kind="mm_encoder_tp_mode",
        help="whether several devices divide an encoder's weights or its batch",
    )
    interleave_mm_strings: bool = flag(
        False, help="keep media placeholders at their positions in the text"
    )
    video_pruning_rate: float | None = flag(
        None,
        ge=0,
        le=1,
        help="fraction of a video's tokens that is dropped, below 1: those of places that look "
        "like the frames before",
    )
    skip_mm_profiling: bool = flag(
        False, help="leave no memory for what media encoders make when it is divided at the start"
    )
    disable_chunked_mm_input: bool = flag(False, help="never split one media item over two steps")
    allowed_local_media_path: str | None = flag(
        None, metavar="FOLDER", help="folder of which file: URLs in requests may name files"
    )
    allowed_media_domains: tuple[str, ...] = flag(
        (),
        metavar="HOST",
        help="the only hosts from which media may be fetched, at whatever address; without it: "
        "any host whose addresses are public",
    )
    image_fetch_timeout: float = flag(
        5.0, ge=0.1, unit="s", help="how long fetching an image from a URL may take"
    )
    audio_fetch_timeout: float = flag(
        10.0, ge=0.1, unit="s", help="how long fetching sound from a URL may take"
    )
    video_fetch_timeout: float = flag(
        30.0, ge=0.1, unit="s", help="how long fetching a video from a URL may take"
    )
    media_url_allow_redirects: bool = flag(
        True, help="follow redirects when media are fetched, each checked like the first URL"
    )
    max_audio_clip_filesize_mb: int = flag(
        25, ge=1, unit="MiB", help="maximum size of a file or a URL of sound"
    )
