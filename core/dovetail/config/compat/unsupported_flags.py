"""The unsupported flags: each names the feature it waits for, so that none is silently ignored.

A flag is *supported* when it is a field of a section and has no row here, *deprecated* when it is a
field of `deprecated_flags.DeprecatedFlags`, and *unsupported* when it has a row here: then only the
values that ask for nothing pass, its default and those a row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import Flag
from dovetail.unsupported import remedy, sentence


@dataclass(frozen=True, slots=True)
class UnsupportedFlag:
    """A flag that waits for a feature. `passing` are values that pass beside the default; an
    object passes when `passing_items` are all it has."""

    feature: str
    passing: tuple[Any, ...] = ()
    passing_items: tuple[tuple[str, Any], ...] = ()

    @property
    def missing(self) -> str:
        """Return the sentence that says what is missing."""
        return sentence(self.feature)

    @property
    def fix(self) -> str:
        """Return what to do instead."""
        return remedy(self.feature, "leave the flag out")


def _all(feature: str, *names: str) -> dict[str, UnsupportedFlag]:
    return dict.fromkeys(names, UnsupportedFlag(feature))


UNSUPPORTED_FLAGS: dict[str, UnsupportedFlag] = {
    **_all("remote_code", "code_revision", "trust_remote_code"),
    **_all("dual_batch", "dbo_decode_token_threshold", "dbo_prefill_token_threshold", "enable_dbo"),
    **_all(
        "media",
        "allowed_local_media_path",
        "allowed_media_domains",
        "default_mm_loras",
        "disable_chunked_mm_input",
        "interleave_mm_strings",
        "media_io_kwargs",
        "mm_encoder_tp_mode",
        "mm_processor_cache_type",
        "mm_processor_kwargs",
        "mm_shm_cache_max_object_size_mb",
        "video_pruning_rate",
    ),
    "limit_mm_per_prompt": UnsupportedFlag(
        "media", passing_items=(("audio", 0), ("image", 0), ("video", 0))
    ),
    "mm_processor_cache_gb": UnsupportedFlag("media", passing=(0.0,)),
    **_all("kv_transfer", "kv_events_config", "kv_transfer_config"),
    **_all("prompt_embeds", "enable_prompt_embeds"),
    **_all("io_processors", "io_processor_plugin"),
    **_all("shared_kv_layers", "kv_sharing_fast_prefill"),
    **_all("attention_dtype", "override_attention_dtype"),
}


def passes(flag: Flag, row: UnsupportedFlag, value: Any) -> bool:
    """Return whether a value asks for nothing: null, nothing at all, the default, or as named."""
    asks_nothing = value is None or value == flag.default or value in ((), "")
    if isinstance(value, Mapping):
        asks_nothing = all(item in row.passing_items for item in value.items())
    return asks_nothing or any(value == other for other in row.passing)
