"""CpuPlatform: the processors and the main memory of this machine."""

from __future__ import annotations

from dovetail.config.rules.machine.platform import available_bytes
from dovetail.interfaces.platform import AUTO_DTYPE, Platform, PlatformDefaults
from dovetail.interfaces.plugin import Info
from dovetail.registry.admin import own

RECORDED_ROWS = 64
"""Above this many rows a CPU's products take so long that recording saves nothing."""


class CpuPlatform(Platform):
    """Computes in float32, on matrices that may be narrower."""

    info = Info(summary="the processor", devices=("cpu",))
    capabilities = frozenset({"host_memory", "host_cores"})
    device_type = "cpu"

    def defaults(self) -> PlatformDefaults:
        """Return small steps: one of thousands of tokens would hold all others up for seconds."""
        return PlatformDefaults(
            worker=own("worker", "cpu"), step_tokens=256, rows=64, recorded_rows=RECORDED_ROWS
        )

    def dtypes(self, requested: str, stored: str | None) -> tuple[str, str]:
        """Return float32 and the requested or stored type: kernels multiply 16-bit weights by
        float32 activations. float64 is also the compute type."""
        weight_dtype = requested if requested != AUTO_DTYPE else stored or "float32"
        return ("float64" if requested == "float64" else "float32"), weight_dtype

    def free_bytes(self) -> int | None:
        """Return the main memory that this process may still take."""
        return available_bytes()
