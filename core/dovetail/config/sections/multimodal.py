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
        {}, kind="modality", help="maximum number of media items per request, as MODALITY: NUMBER"
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
        None, ge=0, le=1, help="fraction of a video's tokens that is dropped"
    )
    disable_chunked_mm_input: bool = flag(False, help="never split one media item over two steps")
    allowed_local_media_path: str | None = flag(
        None, metavar="FOLDER", help="folder whose media files requests may use"
    )
    allowed_media_domains: tuple[str, ...] = flag(
        (), metavar="HOST", help="hosts from which media may be fetched"
    )
