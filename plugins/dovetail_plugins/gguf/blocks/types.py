"""The number types of GGUF tensors: their codes and how large their blocks are. Imports no torch.

Source: ggml_type in https://github.com/ggml-org/ggml/blob/master/include/ggml.h
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """`values` numbers per block of `block_bytes`."""

    name: str
    values: int
    block_bytes: int


FLOAT_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types that are plain floats -> torch's names."""

PLAIN_DTYPES = FLOAT_DTYPES | {
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}
"""Types that are plain numbers -> torch's names."""

TYPES: dict[int, Type] = {
    code: Type(name, values, block_bytes)
    for code, name, values, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
    )
}
NOT_READ: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
    42: "Q2_0",
}
"""Types that a valid file may have, and that are not read."""
BY_NAME = {one.name: one for one in TYPES.values()}
CODES = {one.name: code for code, one in TYPES.items()}
QUANTIZED = tuple(one.name for one in TYPES.values() if one.values > 1)

KEPT: dict[str, tuple[float, int]] = {
    "Q4_0": (4, 2),
    "Q4_1": (4, 4),
    "Q5_0": (5, 2),
    "Q5_1": (5, 4),
    "Q8_0": (8, 2),
    "Q2_K": (2, 20),
    "Q3_K": (3, 18),
    "Q4_K": (4, 20),
    "Q5_K": (5, 20),
    "Q6_K": (6, 18),
    "IQ1_S": (1.5, 6),
    "IQ1_M": (1.5, 10),
    "IQ2_XXS": (2, 6),
    "IQ2_XS": (2.125, 10),
    "IQ2_S": (2.25, 10),
    "IQ3_XXS": (3, 6),
    "IQ3_S": (3.25, 6),
    "IQ4_NL": (4, 2),
    "IQ4_XS": (4, 10),
    "TQ1_0": (1.6, 2),
    "TQ2_0": (2, 2),
    "MXFP4": (4, 2),
    "NVFP4": (4, 4),
}
"""In memory: the bits of a value, and the bytes of a block's steps, offsets and codes (_weight)."""
TABLES = frozenset(("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"))
"""Types that are stored as codes of a table; a matrix has one table."""
