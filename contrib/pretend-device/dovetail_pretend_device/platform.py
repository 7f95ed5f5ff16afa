"""PretendPlatform: detects the device, says what an engine on it takes and what it cannot take."""

from __future__ import annotations

import os

from dovetail.errors import ConfigError, with_fix
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.platform import AUTO_DTYPE, Platform, PlatformDefaults, PlatformLimits
from dovetail.interfaces.plugin import Info

VARIABLE = "PRETEND_DEVICE"
"""Set to 1 it plugs the device in. A real platform looks for a device node or a driver's file."""
DEVICE = "pretend"


class PretendPlatform(Platform):
    """An accelerator with fixed sizes of steps, blocks of 32 or 64 tokens, and its own norm."""

    interface_version = 1
    info = Info(summary="a pretend accelerator, on the CPU", devices=(DEVICE,))
    auto_rank = 20  # it is there because somebody wants it: before a GPU
    device_type = DEVICE
    torch_type = "cpu"
    ops = {"rms_norm": "dovetail_pretend_device.ops:RMS_NORM"}

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return the reason why this device is not available, without importing torch."""
        if os.environ.get(VARIABLE) == "1":
            return None
        return with_fix("no pretend device is plugged in", f"set {VARIABLE}=1")

    def defaults(self) -> PlatformDefaults:
        """Return the sizes that suit the device, and the plugins that belong to it."""
        return PlatformDefaults(
            worker="pretend",
            scheduler="pretend_buckets",
            kv_policy="pretend_reserve",
            attention="torch_sdpa",
            step_tokens=128,
            rows=8,
            block_tokens=32,
        )

    def limits(self) -> PlatformLimits:
        """Return the limits of its memory and its compiler."""
        return PlatformLimits(
            step_tokens=256,
            rows=16,
            block_tokens=(32, 64),
            dtypes=("float32", "bfloat16"),
            kv_dtypes=("float32", "bfloat16"),
            quantizations=("none", "int8"),
        )

    def dtypes(self, requested: str, stored: str | None) -> tuple[str, str]:
        """Return the type asked for; float16 checkpoints become bfloat16."""
        chosen = requested if requested != AUTO_DTYPE else stored or "bfloat16"
        if requested == AUTO_DTYPE and chosen not in self.limits().dtypes:
            chosen = "bfloat16"
        return chosen, chosen

    def check(self, spec: EngineSpec) -> None:
        """Refuse swapping, which the device has no path for. Raises: ConfigError"""
        if spec.cache.host_bytes:
            raise ConfigError(
                "the pretend device cannot copy its cache to host memory.",
                where="--swap-space",
                fix="use 0, or leave the flag out.",
            )
