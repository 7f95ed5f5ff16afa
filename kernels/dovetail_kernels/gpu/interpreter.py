"""Triton's interpreter: dot products with the same bits on every machine, and less waiting.

Triton interprets a dot by numpy's matmul, whose BLAS picks the order of a sum by processor and
shapes: a single row then differs from the same row in a batch, whatever the kernel does. On a GPU
that order depends only on the tile's inputs, and so it does here. Knows no kernel; needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.generic]


def matmul(a: Numbers, b: Numbers, dtype: npt.DTypeLike) -> Numbers:
    """Return a @ b: each number one sum over the inputs in order, every step rounded to `dtype`.

    Shapes: a [..., M, K], b [..., K, N] -> [..., M, N]
    """
    a, b = a.astype(dtype), b.astype(dtype)
    total = np.zeros(np.broadcast_shapes(a[..., :1].shape, b[..., :1, :].shape), dtype)
    product = np.empty_like(total)
    for k in range(a.shape[-1]):
        np.multiply(a[..., k : k + 1], b[..., k : k + 1, :], out=product)
        total += product
    return total


def sum_in_order() -> None:
    """Make this process's interpreter sum its dots by `matmul`."""
    from triton.runtime import interpreter

    numpy = ModuleType(np.__name__)
    vars(numpy).update(vars(np) | {"matmul": matmul})
    interpreter.np = numpy


def patch_once_a_launch() -> None:
    """Make this process's interpreter patch Triton's language once a launch.

    It does so again in every call of one kernel's function by another, which finds everything
    patched already, and takes a third of all time.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    launch = interpreter.GridExecutor.__call__
    patched: set[frozenset[str]] = set()

    def patch_first(fn: Callable[..., Any]) -> Any:
        seen = _languages(fn)
        if seen in patched:
            return None  # a call within a launch, which restores nothing
        patched.add(seen)
        return patch(fn)

    def launch_anew(self: Any, *arguments: Any, **named: Any) -> Any:
        patched.clear()
        return launch(self, *arguments, **named)

    interpreter._patch_lang = patch_first
    interpreter.GridExecutor.__call__ = launch_anew


def overflow_unseen() -> None:
    """Make this process's interpreter compute no sum of integers again in 64 bits to see whether it
    overflows: unless it debugs it throws the answer away, which took a third of all time."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def remember_types() -> None:
    """Make this process's interpreter cache numpy's types for Triton's: otherwise it builds a table
    of all of them for every load, constant and cast."""
    from triton.runtime import interpreter

    looked_up = interpreter._get_np_dtype
    known: dict[str, np.dtype[Any]] = {}

    def remembered(dtype: Any) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in known:
            known[name] = looked_up(dtype)
        return known[name]

    interpreter._get_np_dtype = remembered


@cache
def _languages(fn: Callable[..., Any]) -> frozenset[str]:
    """Return the modules of Triton's language that a kernel's module has: those are patched."""
    return frozenset(
        value.__name__
        for value in fn.__globals__.values()
        if isinstance(value, ModuleType) and value.__name__.startswith("triton.language")
    )
