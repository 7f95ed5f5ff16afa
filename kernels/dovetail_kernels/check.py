"""Checking and timing one case of an op."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from dovetail_kernels.cpu.blocks import BLOCKS
from dovetail_kernels.cpu.library import library
from dovetail_kernels.op import Arguments, Case, Op

MIN_TIME_S = 0.2
MAX_RUNS = 200
CACHE_BYTES = 96 << 20
"""Arguments are rotated until this much has been touched, so that weights come from memory."""
MAX_COPIES = 64


def results_of(
    function: Callable[..., Any], case: Case, arguments: Arguments
) -> list[torch.Tensor]:
    """Return everything a call computes: its results, of several those that are not None, and the
    arguments it changed."""
    returned = function(**arguments)
    several = returned if isinstance(returned, tuple) else (returned,)
    tensors = [one for one in several if one is not None]
    return tensors + [arguments[name] for name in case.mutates]


def check_case(
    op: Op,
    case: Case,
    name: str,
    device: torch.device,
    wanted: list[torch.Tensor] | None = None,
) -> str | None:
    """Return the fault of an implementation in a case, including exceptions; None when it is right.

    The reference is checked for finite numbers, and for not changing its other arguments. `wanted`
    are its results; None: they are computed here.
    """
    try:
        function = op.pick(device.type, case.dtype, name=name)
    except LookupError:
        return None  # it does not claim this device or dtype
    try:
        return _fault(op, case, name, device, function, wanted)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _fault(
    op: Op,
    case: Case,
    name: str,
    device: torch.device,
    function: Callable[..., Any],
    wanted: list[torch.Tensor] | None,
) -> str | None:
    arguments, untouched = case.build(device), case.build(device)
    if op.why_not(name, arguments) is not None:
        return None  # nor these arguments
    if wanted is None:
        wanted = results_of(op.reference, case, case.build(device))
    results = results_of(function, case, op.prepare(name, arguments))
    for i, (one, other) in enumerate(zip(results, wanted, strict=True)):
        if case.is_finite and not bool(one.float().isfinite().all()):
            return f"result {i} is not finite"
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"result {i} is {one.dtype} {list(one.shape)}"
        if one.dtype == torch.int64 and not torch.equal(one, other):
            return f"result {i} is not the same whole numbers"
        if not torch.allclose(one.float(), other.float(), rtol=case.rtol, atol=case.atol):
            worst = (one.float() - other.float()).abs().max().item()
            return f"result {i} is off by {worst:.3g}"
    return _changed(case, arguments, untouched)


def _changed(case: Case, arguments: Arguments, untouched: Arguments) -> str | None:
    for name, value in arguments.items():
        is_kept = name in case.mutates or not isinstance(value, torch.Tensor)
        if not is_kept and not torch.equal(value, untouched[name]):
            return f"argument {name} was changed"
    return None


def time_case(op: Op, case: Case, name: str, device: torch.device) -> float | None:
    """Return the median seconds of a call on cold arguments, or None when it does not run here."""
    try:
        function = op.pick(device.type, case.dtype, name=name)
    except LookupError:
        return None
    built = case.build(device)
    if op.why_not(name, built) is not None:
        return None
    wanted = min(MAX_COPIES, 1 + CACHE_BYTES // max(1, case.moved_bytes))
    copies = itertools.cycle([op.prepare(name, _copied(built)) for _ in range(wanted)])
    function(**next(copies))
    times: list[float] = []
    while len(times) < MAX_RUNS and (len(times) < 5 or sum(times) < MIN_TIME_S):
        _wait(device)
        arguments = next(copies)
        start_s = time.perf_counter()
        function(**arguments)
        _wait(device)
        times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def _copied(arguments: Arguments) -> Arguments:
    """Return the arguments with copies of their tensors."""
    return {
        name: _copy(value) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, on a CPU in large pages, as an engine's weights and caches are."""
    native = library()
    if native is None or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.clone()
    memory = BLOCKS.empty(tensor.nbytes, native)
    return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
