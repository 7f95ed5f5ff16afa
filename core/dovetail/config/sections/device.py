"""DeviceConfig: what the model runs on."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device and threads."""

    device: str = flag("auto", kind="platform", help="kind of device that runs the model")
    num_threads: int = flag(
        0,
        ge=0,
        le=1024,
        help="CPU threads of one rank; 0 means OMP_NUM_THREADS if set, else the number of "
        "cores it may use",
    )
    cpu_cores: str | None = flag(
        None,
        metavar="LIST",
        aliases=("--cpu-omp-threads-bind",),
        help="CPUs that the engine may run on, such as 0-3,8; without --num-threads it uses one "
        "thread for each of their cores. Several ranks and engines divide them, or have one list "
        "each, as in 0-3|4-7; nobind lets each run on all of them",
        default_note="all that this process may use",
    )
    thread_spin_us: int = flag(
        50,
        ge=0,
        le=1_000_000,
        help="time that an idle kernel thread waits actively before it sleeps, in microseconds; "
        "with 0 ranks sleep at once too, which otherwise wait actively for 0.5 ms at most",
    )
    pin_threads: bool = flag(
        False,
        help="pin each kernel thread to one core; use it only if nothing else runs on the machine",
    )
