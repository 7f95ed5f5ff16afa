"""Native implementations of ops. Most are objects that hold a kernel's argument struct: made once
from a layer's own arguments, called with those of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_kernels.cpu.library import missing_reason
from dovetail_kernels.op import Arguments, Implementation
from dovetail_kernels.states import CODES, StateRows


def native_implementation(
    function: Callable[..., Any],
    *,
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    why_not: Callable[[Arguments], str | None] = lambda arguments: None,
    prepare: Callable[[Arguments], Arguments] = lambda arguments: arguments,
) -> Implementation:
    """Return an op's implementation by a kernel of the native library."""
    return Implementation(
        name="native",
        function=function,
        devices=("cpu",),
        dtypes=dtypes,
        rank=10,
        unavailable_reason=missing_reason,
        why_not=why_not,
        prepare=prepare,
    )


def layer_implementation(
    make: Callable[..., Callable[..., Any]],
    own: Sequence[str] = (),
    *,
    why_not: Callable[[Arguments], str | None] = lambda arguments: None,
) -> Implementation:
    """Return an op's implementation by objects that `make` makes once for many calls. It gets the
    arguments named in `own`, those that are given; a call gets the others."""
    prepare = _maker(make, own)
    return native_implementation(call_layer, why_not=why_not, prepare=prepare)


def why_not_states(arguments: Arguments) -> str | None:
    """Return why states of these arguments are not for a native kernel, or None."""
    dtype = arguments["state"].dtype
    return None if dtype in CODES else f"it does not take states of {dtype}"


def recurrent_implementation(
    make: Callable[..., Callable[..., Any]],
    own: Sequence[str],
    *,
    why_not: Callable[[Arguments], str | None] = why_not_states,
) -> Implementation:
    """Return the same as `layer_implementation` for objects that take StateRows as `rows`."""
    prepare = _maker(make, own)
    return native_implementation(_call_recurrent, why_not=why_not, prepare=prepare)


def call_layer(layer: Callable[..., Any], **arguments: Any) -> Any:
    """Return what a layer's object returns."""
    return layer(**arguments)


def _call_recurrent(
    layer: Callable[..., Any],
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
    **arguments: Any,
) -> Any:
    rows = StateRows(
        query_start=query_start,
        seq_lens=seq_lens,
        block_table=block_table,
        block_tokens=block_tokens,
        row_block_tokens=row_block_tokens,
    )
    return layer(**arguments, rows=rows)


def _maker(
    make: Callable[..., Callable[..., Any]], own: Sequence[str]
) -> Callable[[Arguments], Arguments]:
    def prepare(arguments: Arguments) -> Arguments:
        mine = {name: given for name, given in arguments.items() if name in own}
        others = {name: given for name, given in arguments.items() if name not in own}
        return {**others, "layer": make(**mine)}

    return prepare
