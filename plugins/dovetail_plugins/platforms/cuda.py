"""CudaPlatform: one NVIDIA GPU, found by device nodes and files.

A guess good enough for defaults: the worker makes the final check with torch itself.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping

from dovetail.config.rules.machine import platform as machine
from dovetail.errors import ConfigError, with_fix
from dovetail.interfaces.platform import AUTO_DTYPE, Platform, PlatformDefaults
from dovetail.interfaces.plugin import Info
from dovetail.registry.admin import own

log = logging.getLogger(__name__)

ASK_LIMIT_S = 5.0


class CudaPlatform(Platform):
    """Computes in 16 bits unless float32 is requested."""

    info = Info(summary="an NVIDIA GPU", requires=("torch",), devices=("cuda",))
    auto_rank = 10
    device_type = "cuda"

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why no NVIDIA GPU can be used, or None when one seems usable."""
        reason = super().unavailable_reason() or machine.no_cuda_reason()
        return None if reason is None else with_fix(reason, "use --device cpu")

    def defaults(self) -> PlatformDefaults:
        """Return large steps, planned while the device runs the one before, and the worker for one
        GPU."""
        return PlatformDefaults(worker=own("worker", "cuda"), async_steps=True)

    def dtypes(self, requested: str, stored: str | None) -> tuple[str, str]:
        """Return the requested type, else the checkpoint's; bfloat16 if that is float32."""
        chosen = requested
        if requested == AUTO_DTYPE:
            chosen = stored or "bfloat16"
            if stored == "float32":
                log.info("dtype auto: bfloat16 on cuda, although the checkpoint stores float32.")
                chosen = "bfloat16"
        return chosen, chosen

    def engine_variables(self, place: int, count: int, num_ranks: int) -> Mapping[str, str]:
        """Return the variable that shows an engine its GPUs. Raises: ConfigError for too few"""
        devices = machine.cuda_devices()
        max_count = len(devices) // num_ranks
        if count > max_count:
            raise ConfigError(
                f"{count} engines need {'a GPU' if num_ranks == 1 else f'{num_ranks} GPUs'} each, "
                f"and there are {len(devices)}.",
                where="--data-parallel-size",
                fix=f"use at most {max_count}." if max_count else "use fewer ranks.",
            )
        own = devices[place * num_ranks : (place + 1) * num_ranks]
        return {machine.VISIBLE_DEVICES: ",".join(own)}

    def free_bytes(self) -> int | None:
        """Return nvidia-smi's facts of the first GPU."""
        query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=0"]
        try:
            process = subprocess.run(
                query, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=True
            )
            return int(process.stdout.split()[0]) * 2**20
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None
