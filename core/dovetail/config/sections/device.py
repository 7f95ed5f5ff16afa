"""DeviceConfig: what the model runs on."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


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
    cpu_cores: str | None = flag(
        None,
        metavar="LIST",
        help="processors that the engine may run on, as 0-3,8; without --num-threads it gets a "
        "thread for each of their cores",
        default_note="all that this process may use",
    )
    thread_spin_us: int = flag(
        50,
        ge=0,
        le=1_000_000,
        help="microseconds that an idle kernel thread stays awake before it sleeps",
    )
    pin_threads: bool = flag(
        False, help="keep each kernel thread on one core; only where nothing else uses the machine"
    )
