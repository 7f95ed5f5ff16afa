"""Triton: whether its kernels run here, and how an op offers one without importing it.

An op's kernel is in its folder's `triton.py`, with `run`, which takes the reference's arguments.
TRITON_INTERPRET=1, set before the start, runs kernels on CPU tensors, one program after the other:
for checking them, never for speed; their dots are then the same bits on every machine
(interpreter.py). Knows no op.

A rule for all kernels: numbers become float32 as soon as they are loaded, and are converted last
for storing. (The interpreter is wrong in bfloat16 and 8-bit floats, also for sums in them.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from dovetail_kernels.op import Arguments, Implementation

TRITON = "triton"
VARIABLE = "TRITON_INTERPRET"
FLOAT8_CAPABILITY = (8, 9)
FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def interprets() -> bool:
    """Return whether kernels are interpreted. Read from the environment, as Triton does."""
    return os.environ.get(VARIABLE) == "1"


@cache
def missing_reason() -> str | None:
    """Return why no Triton kernel runs here, or None. Imports nothing."""
    if find_spec("triton") is None:
        return 'package "triton" is not installed'
    if not interprets() and not torch.cuda.is_available():
        return f"torch finds no CUDA device ({VARIABLE}=1 interprets Triton kernels on a CPU)"
    return None


def float8_reason(device: torch.device) -> str | None:
    """Return why a device has no products of two 8-bit floats, or None."""
    if interprets():
        return None
    if device.type != "cuda":
        return f"{device.type} has no products of two 8-bit floats"
    capability = torch.cuda.get_device_capability(device)
    if capability >= FLOAT8_CAPABILITY:
        return None
    has, needs = (".".join(map(str, one)) for one in (capability, FLOAT8_CAPABILITY))
    return f"{device} has compute capability {has}, products of two 8-bit floats need {needs}"


def triton_implementation(
    op_name: str,
    *,
    dtypes: tuple[torch.dtype, ...] = FLOAT_DTYPES,
    why_not: Callable[[Arguments], str | None] = lambda arguments: None,
    prepare: Callable[[Arguments], Arguments] = lambda arguments: arguments,
) -> Implementation:
    """Return an op's Triton implementation: `run` in its folder's `triton.py`, imported when it is
    first called."""
    return Implementation(
        name=TRITON,
        function=_Late(f"dovetail_kernels.{op_name}.triton"),
        devices=("cuda", "cpu") if interprets() else ("cuda",),
        dtypes=dtypes,
        rank=5,
        unavailable_reason=missing_reason,
        why_not=why_not,
        prepare=prepare,
    )


class _Late:
    """A module's `run`, found at the first call."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._run: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._run is None:
            self._run = import_module(self._module).run
        return self._run(*args, **named)


if interprets() and missing_reason() is None:
    _interpreter = import_module("dovetail_kernels.gpu.interpreter")
    _interpreter.sum_in_order()
    _interpreter.patch_once_a_launch()
    _interpreter.overflow_unseen()
    _interpreter.remember_types()
