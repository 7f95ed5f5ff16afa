"""The platform: the device that an engine runs on, with its defaults and limits."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import registry
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.platform import Platform

FLAG = "--device"


def select_platform(device: DeviceConfig, plugins: PluginConfig) -> tuple[Selection, Platform]:
    """Return the requested or the best available platform, as data and as an instance.

    Raises: UnavailablePlugin with the reason why its device is not available
    """
    options = plugins.options_of("platform")
    name = device.device
    selection = registry.choose("platform", name, options=options, where=FLAG)
    platform: Platform = registry.make(selection)
    return selection, platform


def block_tokens(cache: CacheConfig, platform: Platform) -> int:
    """Return the tokens per KV cache block. Raises: ConfigError for an unsupported size."""
    requested = cache.block_size
    sizes = platform.limits().block_tokens
    if requested is None:
        return platform.defaults().block_tokens
    found = int(registry.admin.value_of("block_size", str(requested)))
    _check_one_of(found, sizes, platform, where="--block-size", what="blocks of {} tokens")
    return found


def check_dtypes(platform: Platform, *, weight_dtype: str, kv_dtype: str) -> None:
    """Raise ConfigError for dtypes of weights or KV cache that the device does not support."""
    limits = platform.limits()
    _check_one_of(weight_dtype, limits.dtypes, platform, where="--dtype", what="weights of {}")
    cached = "a KV cache of {}"
    _check_one_of(kv_dtype, limits.kv_dtypes, platform, where="--kv-cache-dtype", what=cached)


def check_quantization(platform: Platform, selection: Selection) -> None:
    """Raise ConfigError for a method that the device does not support."""
    methods = platform.limits().quantizations
    _check_one_of(
        selection.name, methods, platform, where="--quantization", what="weights stored as {}"
    )


def at_most(
    requested: int | None, usual: int, limit: int | None, flag: str, platform: Platform
) -> int:
    """Return the requested number, or the usual one. Raises: ConfigError above the maximum."""
    if limit is None:
        return requested or usual
    if requested is not None and requested > limit:
        raise ConfigError(
            f"{requested} are more than the device {platform.device_type} takes.",
            where=flag,
            fix=f"use at most {limit}.",
        )
    return min(requested or usual, limit)


def _check_one_of(
    found: int | str, known: Sequence[int | str], platform: Platform, *, where: str, what: str
) -> None:
    if known and found not in known:
        raise ConfigError(
            f"the device {platform.device_type} does not take {what.format(found)}.",
            where=where,
            fix=f"use one of {', '.join(map(str, known))}.",
        )
