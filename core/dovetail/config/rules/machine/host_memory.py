"""Host memory in addition to the device's: swapped caches, offloaded weights, and sleep mode."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dovetail import registry
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.platform import Platform

log = logging.getLogger(__name__)

HOST_MEMORY = "host_memory"
"""Capability of a platform that computes in main memory."""


def swap_bytes(
    cache: CacheConfig,
    origins: Mapping[str, str],
    platform: Platform,
    scheduler: Selection,
    worker: Selection,
) -> int:
    """Return the host memory for the caches of preempted requests.

    By default 0 on a CPU, whose cache is in host memory anyway, and with plugins that do not
    support swapping. Raises: ConfigError if it is requested with such plugins.
    """
    requested = int(cache.swap_space * 2**30)
    unable = [one for one in (scheduler, worker) if not _has(one, "swap")]
    if "swap_space" not in origins:
        return 0 if unable or HOST_MEMORY in platform.capabilities else requested
    if requested and unable:
        raise ConfigError(
            f"the {unable[0].kind} {unable[0].name} does not support swapping to host memory.",
            where="--swap-space",
            fix="use 0, or leave the flag out.",
        )
    return requested


def offload_bytes(model_config: ModelConfig, cache: CacheConfig, platform: Platform) -> int:
    """Return the bytes of weights that stay in host memory; 0 on a CPU, which has no other."""
    requested = int(cache.cpu_offload_gb * 2**30)
    if not requested:
        return 0
    if HOST_MEMORY in platform.capabilities:
        log.info("--cpu-offload-gb: a CPU's weights are in host memory already; none are copied.")
        return 0
    if not model_config.enforce_eager:
        log.info(
            "--cpu-offload-gb: steps are not captured, because weights are copied within them."
        )
    return requested


def may_sleep(model_config: ModelConfig, executor: Selection, worker: Selection) -> bool:
    """Return whether sleep mode is on. Raises: ConfigError if it is not supported."""
    if not model_config.enable_sleep_mode:
        return False
    for one in (executor, worker):
        if not _has(one, "sleep"):
            raise ConfigError(
                f"the {one.kind} {one.name} does not support sleep mode.",
                where="--enable-sleep-mode",
                fix=f"leave the flag out, or choose another {one.kind}.",
            )
    return True


def _has(selection: Selection, word: str) -> bool:
    return word in registry.admin.load_selection(selection).capabilities
