"""MediaSettings from the flags for media, with every key and number checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media_settings import (
    AUDIO,
    IMAGE,
    MIB,
    MODALITIES,
    VIDEO,
    AudioOptions,
    ImageOptions,
    MediaLimit,
    MediaOptions,
    MediaSettings,
    VideoOptions,
)

LIMITS = "--limit-mm-per-prompt"
OPTIONS = "--media-io-kwargs"
LIMIT_KEYS = {
    IMAGE: ("count", "width", "height"),
    VIDEO: ("count", "width", "height", "num_frames"),
    AUDIO: ("count", "length"),
}
"""Modality -> what can be limited."""

MAX_FRAMES = 4096
"""Maximum number of frames that can be requested of a video."""

MAX_RATE_HZ = 192_000


def media_settings(multimodal: MultiModalConfig) -> MediaSettings:
    """Return the settings of media. Raises: ConfigError, PluginError for an unknown modality"""
    given = _by_modality(LIMITS, multimodal.limit_mm_per_prompt)
    limits = {medium: _limit(medium, value) for medium, value in given}
    timeouts_s = {
        IMAGE: multimodal.image_fetch_timeout,
        VIDEO: multimodal.video_fetch_timeout,
        AUDIO: multimodal.audio_fetch_timeout,
    }
    defaults = MediaSettings()
    return MediaSettings(
        local_path=_folder(multimodal.allowed_local_media_path),
        domains=tuple(_host(name) for name in multimodal.allowed_media_domains),
        allows_redirects=multimodal.media_url_allow_redirects,
        limits=limits,
        options=media_options(multimodal.media_io_kwargs, where=OPTIONS),
        fetch_timeouts_s=timeouts_s,
        max_bytes={**defaults.max_bytes, AUDIO: multimodal.max_audio_clip_filesize_mb * MIB},
    )


def media_options(
    given: Mapping[str, Any], *, where: str, base: MediaOptions | None = None
) -> MediaOptions:
    """Return decoding options; `base` provides those that are not given. Raises: ConfigError"""
    base = base or MediaOptions()
    changed = {}
    for modality, options in _by_modality(where, given):
        if not isinstance(options, Mapping):
            raise ConfigError(f"{modality} must hold options, not {options!r}.", where=where)
        changed[modality] = _options(getattr(base, modality), options, f"{where}.{modality}")
    return msgspec.structs.replace(base, **changed)


def _by_modality(where: str, given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items with their modalities' names; the plurals of older flags are accepted."""
    found: dict[str, Any] = {}
    for word, value in given.items():
        singular = word.removesuffix("s")
        name = singular if singular in MODALITIES else word
        registry.find("modality", name, where=where)
        if name in found:
            raise ConfigError(f"{name} is given twice.", where=where)
        found[name] = value
    return list(found.items())


def _limit(modality: str, value: Any) -> MediaLimit:
    keys = LIMIT_KEYS[modality]
    where = f"{LIMITS}.{modality}"
    limits = dict(value) if isinstance(value, Mapping) else {"count": value}
    unknown = sorted(limits.keys() - set(keys))
    if unknown:
        raise ConfigError(
            f'there is no limit "{unknown[0]}".', where=where, fix=f"use {', '.join(keys)}."
        )
    whole = {key: _whole(limit, f"{where}.{key}") for key, limit in limits.items()}
    for key, limit in whole.items():
        minimum = 0 if key == "count" else 1
        if limit < minimum:
            raise ConfigError(f"must be at least {minimum}.", where=f"{where}.{key}")
    return MediaLimit(**whole)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"must be a whole number, not {value!r}.", where=where)
    return value


Options = ImageOptions | VideoOptions | AudioOptions


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The minimum and maximum of an option."""

    least: float
    most: float
    is_whole: bool = True


_BOUNDS = {
    "max_pixels": _Bounds(1, 1 << 28),
    "num_frames": _Bounds(-1, MAX_FRAMES),
    "fps": _Bounds(1e-3, 1000, is_whole=False),
    "sampling_rate": _Bounds(1000, MAX_RATE_HZ),
    "max_seconds": _Bounds(1e-3, 24 * 3600, is_whole=False),
}
COLOR = "rgba_background_color"


def _options(base: Options, given: Mapping[str, Any], where: str) -> Options:
    known = [name for name in base.__struct_fields__]
    for name, value in given.items():
        at = f"{where}.{name}"
        if name not in known:
            raise ConfigError(
                f'there is no option "{name}".', where=where, fix=f"use {', '.join(known)}."
            )
        checked = _color(value, at) if name == COLOR else _number(value, _BOUNDS[name], at)
        base = msgspec.structs.replace(base, **{name: checked})
    return base


def _number(value: Any, bounds: _Bounds, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (bounds.is_whole and value != int(value)) or value == 0:
        word = "a whole number" if bounds.is_whole else "a number"
        raise ConfigError(f"must be {word} other than 0, not {value!r}.", where=where)
    if not bounds.least <= value <= bounds.most:
        raise ConfigError(f"must be from {bounds.least:g} to {bounds.most:g}.", where=where)
    return int(value) if bounds.is_whole else float(value)


def _color(value: Any, where: str) -> tuple[int, ...]:
    is_color = isinstance(value, list | tuple) and len(value) == 3
    if not is_color or any(type(part) is not int or not 0 <= part <= 255 for part in value):
        raise ConfigError("must be three numbers from 0 to 255.", where=where)
    return tuple(value)


def _folder(path: str | None) -> str | None:
    if not path:
        return None
    if not Path(path).is_dir():
        raise ConfigError(f"{path} is not a folder.", where="--allowed-local-media-path")
    return str(Path(path).resolve())


def _host(name: str) -> str:
    """Return a host in the form that URLs are compared with. Raises: ConfigError"""
    host = name.strip().rstrip(".").lower()
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or any(char in bare for char in "/@?#* ") or (":" in bare and bare.count(":") < 2):
        raise ConfigError(
            f'"{name}" is not the name or the address of a host.',
            where="--allowed-media-domains",
            fix="write hosts alone, such as images.example.com.",
        )
    return bare
