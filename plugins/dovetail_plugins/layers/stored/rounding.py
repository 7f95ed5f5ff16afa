"""The types of activations in products: the option `activations` and its effect.

Imports no torch. Knows the words for matrices (`takes`), no format of kernels and no layer. "float"
rounds nothing, on any device. Otherwise the matrix decides the type of its activations: integers of
8 bits and fewer take int8, in groups of inputs or, if a checkpoint itself says so, with a scale per
token; e4m3 may take e4m3; the others bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AUTO, INT8, FLOAT8, BFLOAT16, FLOAT = "auto", "int8", "float8", "bfloat16", "float"
TOKEN = "token"
"""int8 with a scale a token."""
TAKES = (TOKEN, INT8, FLOAT8, BFLOAT16, FLOAT)
"""Possible activation types of a matrix: a checkpoint's own int8 per token, int8, e4m3 (else as the
next), bfloat16 (integers and small floats, exact in it), or only floats."""
BFLOAT16_HELP = (
    "rounded to bfloat16 where the model is in bfloat16 and the CPU multiplies pairs of it "
    "faster than floats"
)
FLOATS: dict[str, Any] = {
    "choices": (BFLOAT16, FLOAT),
    "help": f"what activations become in a product: bfloat16: {BFLOAT16_HELP}; float: not rounded",
}
INTEGERS: dict[str, Any] = {
    "choices": (AUTO, INT8, FLOAT),
    "help": "what activations become in a product with integer weights: int8: 8 bits, in groups of "
    "inputs on a CPU; float: not rounded, nor are those of other layers; auto: as a checkpoint "
    "itself says, else int8 on a CPU and 16 bits on a GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """The option for the type of activations in products, shared by all methods."""

    activations: str = field(default=BFLOAT16, metadata=FLOATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerOptions(ActivationOptions):
    """The same option for methods with integer weights."""

    activations: str = field(default=AUTO, metadata=INTEGERS)


def asked_of(options: object) -> str:
    """Return the activations that a method's options request; "auto" without such an option."""
    return options.activations if isinstance(options, ActivationOptions) else AUTO


def taken(takes: str, activations: str, *, is_cpu: bool, is_bfloat16: bool) -> str:
    """Return what activations become: one of `TAKES`.

    `takes`: the matrix's; `activations`: the option's. `is_bfloat16`: the model is stored in
    bfloat16 and the CPU is faster with its pairs.
    """
    assert takes in TAKES, takes
    if activations == FLOAT or takes == FLOAT:
        return FLOAT
    if takes == TOKEN or (takes == INT8 and (activations == INT8 or is_cpu)):
        return takes
    if takes == FLOAT8 and activations != BFLOAT16 and not is_cpu:
        return FLOAT8
    return BFLOAT16 if is_cpu and is_bfloat16 else FLOAT
