"""CompilerBoundary: a call that torch.compile does not trace, such as attention or a native kernel.

Everything else of a layer is traced as torch operators, so that the compiler can fuse them; kernels
that merely fuse operators are bypassed during tracing. All opaque calls are one torch operator,
which looks the function up by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from weakref import WeakValueDictionary

import torch

from dovetail import moved

__all__ = ["CompilerBoundary", "is_traced"]

__getattr__ = moved.attributes(__name__)
Function = Callable[..., torch.Tensor]

is_traced = torch.compiler.is_compiling
"""() -> whether a compiler is tracing the calls instead of running them."""
_numbers = count()
_known: WeakValueDictionary[int, CompilerBoundary] = WeakValueDictionary()


class CompilerBoundary:
    """A function of tensors that makes a new tensor [T, size]; T is the first one's length.

    `dtype` is the result's (None: the first tensor's). It may read and change its own state, but
    must not change its arguments.
    """

    def __init__(self, function: Function, dtype: torch.dtype | None = None) -> None:
        self.function = function
        self.dtype = dtype
        self.number = next(_numbers)
        _known[self.number] = self

    def __call__(self, *tensors: torch.Tensor | None, size: int, word: str = "") -> torch.Tensor:
        """Return the function's result for the tensors, and for a last word if there is one.

        Shapes: tensors[0] [T, ..] -> [T, size]
        """
        if not is_traced():
            return self.function(*tensors, word) if word else self.function(*tensors)
        result: torch.Tensor = torch.ops.dovetail.opaque(
            tensors, self.number, size, self.dtype, word
        )
        return result


def _run(
    tensors: Sequence[torch.Tensor | None],
    number: int,
    size: int,
    dtype: torch.dtype | None,
    word: str,
) -> torch.Tensor:
    function = _known[number].function
    result = function(*tensors, word) if word else function(*tensors)
    return result.contiguous()


def _shape(
    tensors: Sequence[torch.Tensor | None],
    number: int,
    size: int,
    dtype: torch.dtype | None,
    word: str,
) -> torch.Tensor:
    """Return an empty tensor with the result's shape and dtype."""
    first = tensors[0]
    assert first is not None, "the first tensor says how many tokens there are"
    return first.new_empty((first.shape[0], size), dtype=dtype or first.dtype)


_library = torch.library.Library("dovetail", "DEF")
_library.define(
    "opaque(Tensor?[] tensors, int number, int size, ScalarType? dtype, str word) -> Tensor"
)
_library.impl("opaque", _run, "CompositeExplicitAutograd")
torch.library.register_fake("dovetail::opaque", _shape, lib=_library)
