"""Compiles Triton kernels for an absent GPU: checks whether they compile, and what they need.

Triton's compiler and NVIDIA's assembler need no device. `AbsentGpu` replaces the driver: launched
kernels are compiled as for the real device and not run, so an op's results are undefined; only the
compiled kernels count. Cannot be used in a process that uses a GPU.
Source: https://docs.nvidia.com/cuda/cuda-binary-utilities/index.html (cuobjdump
--dump-resource-usage)
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dovetail_kernels.gpu import TRITON
from dovetail_kernels.gpu.facts import KNOWN, standing_for
from dovetail_kernels.op import Case, Implementation, Op

MAX_THREADS = 1024
MAX_STACK_BYTES = 16
"""More bytes of spilled registers per thread than this are a fault: a tile too large. (The
assembler spills up to four even if registers are left.)"""
USE = re.compile(r"REG:(\d+) STACK:(\d+)")
MATRIX = re.compile(r"\b([HIQ]G?MMA)\b")
"""Instructions of the matrix units: of half, integer and 8-bit float numbers, by warp or group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A kernel as the device would run it. `stack_bytes` of a thread are spilled registers: they
    are in memory, and cost time."""

    name: str
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    binary: bytes = field(repr=False)

    def products(self) -> tuple[str, ...]:
        """Return the matrix instructions that it has. To disassemble it takes half a second."""
        return tuple(sorted(set(MATRIX.findall(_dumped(self.binary, "--dump-sass")))))


class AbsentGpu:
    """A driver stub, which answers Triton for one compute capability (90 is an H100 or H200)."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)
        self.found: list[Compiled] = []
        self.utils = self
        self._num_warps = 0

    def get_current_target(self) -> Any:
        """Return the target that kernels are compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """Return a number for the device: its capability's, so that Triton, which caches compiled
        kernels by device, never takes another's."""
        return int(self._target.arch)

    def get_current_stream(self, device: int) -> int:
        """Return the only stream."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return the limits that Triton compares a kernel with before it is launched."""
        return {"max_shared_mem": KNOWN[self._target.arch].shared_bytes}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Return a launcher that launches nothing."""
        self._num_warps = metadata.num_warps
        return lambda *arguments: None

    def load_binary(
        self, name: str, binary: bytes, shared_bytes: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Record a kernel's resources. Mutates: self"""
        registers, stack_bytes = _use(binary)
        self.found.append(
            Compiled(
                name=name,
                num_warps=self._num_warps,
                registers=registers,
                stack_bytes=stack_bytes,
                shared_bytes=shared_bytes,
                binary=binary,
            )
        )
        return 1, 1, registers, stack_bytes // 4, MAX_THREADS


@contextmanager
def absent_gpu(capability: int) -> Iterator[AbsentGpu]:
    """Compile every launch inside the with block for a GPU that is not here, and run none.

    Raises: ValueError when the capability is not known
    """
    from triton.runtime.driver import driver

    with standing_for(capability):
        gpu = AbsentGpu(capability)
        driver.set_active(gpu)
        try:
            yield gpu
        finally:
            driver._active = None


def _use(binary: bytes) -> tuple[int, int]:
    """Return the registers and the bytes of stack that a thread of a kernel takes."""
    dump = _dumped(binary, "--dump-resource-usage")
    usage = USE.search(dump)
    assert usage is not None, dump
    return int(usage[1]), int(usage[2])


def _dumped(binary: bytes, what: str) -> str:
    """Return cuobjdump's output for a kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def triton_calls(op: Op, max_cases: int) -> list[tuple[str, Callable[[], Any]]]:
    """Return calls of an op's Triton implementation on CPU tensors, of up to `max_cases` of its
    small cases, spread evenly; none if it has no such implementation."""
    implementation = next((i for i in op.implementations if i.name == TRITON), None)
    if implementation is None:
        return []
    cases = [case for case in op.small_cases() if _takes(implementation, case)]
    return [
        (f"{case.name} {case.dtype}", partial(_call, implementation, case))
        for case in cases[:: -(-len(cases) // max_cases)]
    ]


def _takes(implementation: Implementation, case: Case) -> bool:
    takes_dtype = case.dtype in implementation.dtypes
    return takes_dtype and implementation.why_not(case.build(torch.device("cpu"))) is None


def _call(implementation: Implementation, case: Case) -> None:
    arguments = implementation.prepare(case.build(torch.device("cpu")))
    implementation.function(**arguments)


def compile_all(
    calls: Sequence[tuple[str, Callable[[], Any]]], capability: int
) -> Iterator[tuple[str, list[Compiled], str | None]]:
    """Yield each call's name, the kernels that it was the first to need, and what went wrong."""
    with absent_gpu(capability) as gpu:
        for name, call in calls:
            before = len(gpu.found)
            fault: str | None = None
            try:
                with torch.inference_mode():
                    call()
            except Exception as error:  # reported with the case; the others are compiled anyway
                fault = f"{type(error).__name__}: {error}"
            yield name, gpu.found[before:], fault
