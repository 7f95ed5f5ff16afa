"""The facts of a device that tiles depend on: its capability, multiprocessors and shared memory.

When kernels are compiled for an absent device, CPU tensors represent it; knows no driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

RESERVED_BYTES = 1 << 10
"""Shared memory that the driver keeps of each block's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device. `shared_bytes`: of shared memory that a block may have."""

    capability: int
    processors: int
    shared_bytes: int

    @property
    def name(self) -> str:
        """Return the name of a class of devices in the table of tiles."""
        return f"{self.capability / 10} x {self.processors}"


KNOWN = {
    facts.capability: facts
    for facts in (
        DeviceFacts(capability=80, processors=108, shared_bytes=163 << 10),
        DeviceFacts(capability=86, processors=82, shared_bytes=99 << 10),
        DeviceFacts(capability=89, processors=128, shared_bytes=99 << 10),
        DeviceFacts(capability=90, processors=132, shared_bytes=227 << 10),
        DeviceFacts(capability=100, processors=148, shared_bytes=227 << 10),
    )
}
"""Absent devices that kernels can be compiled for, by capability: A100, RTX 3090 and 4090, H100 and
H200, B200."""
_stand_in = [KNOWN[90]]


def facts_of(device: torch.device) -> DeviceFacts:
    """Return a device's facts; for a CPU, those of the device that it represents."""
    if device.type != "cuda":
        return _stand_in[-1]
    return _cuda_facts(torch.cuda.current_device() if device.index is None else device.index)


@contextmanager
def standing_for(capability: int) -> Iterator[None]:
    """Let CPU tensors represent a device of this capability inside the with block.

    Raises: ValueError when the capability is not known
    """
    if capability not in KNOWN:
        raise ValueError(f"capability {capability} is not one of {', '.join(map(str, KNOWN))}")
    _stand_in.append(KNOWN[capability])
    try:
        yield
    finally:
        _stand_in.pop()


@cache
def _cuda_facts(index: int) -> DeviceFacts:
    found = torch.cuda.get_device_properties(torch.device("cuda", index))
    return DeviceFacts(
        capability=10 * found.major + found.minor,
        processors=found.multi_processor_count,
        shared_bytes=found.shared_memory_per_multiprocessor - RESERVED_BYTES,
    )
