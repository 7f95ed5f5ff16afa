"""DeviceConfig: what the model runs on."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device and threads."""

    device: str = flag("auto", kind="device", help="kind of device that runs the model")
    num_threads: int = flag(
        0,
        ge=0,
        le=1024,
        help="CPU threads of one worker; 0 takes OMP_NUM_THREADS or the cores this process may use",
    )
