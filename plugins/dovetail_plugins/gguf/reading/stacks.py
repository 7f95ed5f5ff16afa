"""Experts stored differently from one tensor for all: each in a separate tensor (`ffn_up.3`, files
of Mixtral until April 2024), or gates and ups in one (`ffn_gate_up_exps`).

Source: build_moe_ffn in https://github.com/ggml-org/llama.cpp/blob/master/src/llama-graph.cpp, and
the tensor names of the gguf package. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.file import TensorExtent

GATES_AND_UPS = "ffn_gate_up_exps"
_ALONE = re.compile(r"(ffn_(?:gate|up|down))\.(\d+)")


def expert_of(stem: str) -> tuple[str, int] | None:
    """Return the stem of all experts' tensor, and the expert number in the given stem."""
    match = _ALONE.fullmatch(stem)
    return None if match is None else (f"{match[1]}_exps", int(match[2]))


def divided(extents: Iterable[TensorExtent]) -> Iterator[TensorExtent]:
    """Yield tensors, with gates and ups split into halves of each expert: the gate comes first."""
    for extent in extents:
        if f".{GATES_AND_UPS}." in extent.name:
            yield from _halves(extent)
        else:
            yield extent


def num_alone(extents: Iterable[TensorExtent]) -> int:
    """Return the number of a block's experts with separate tensors, 0 if no block has such."""
    names = (extent.name.split(".", 2)[-1] for extent in extents if extent.name[:4] == "blk.")
    stems = (name.removesuffix(".weight") for name in names if name.startswith("ffn_up."))
    return len({stem for stem in stems if expert_of(stem)})


def _halves(extent: TensorExtent) -> Iterator[TensorExtent]:
    if len(extent.shape) < 2 or extent.shape[1] % 2:
        raise ConfigError(
            f"{extent.name} has the shape {list(extent.shape)}, which has no two halves.",
            where=str(extent.path),
            fix="download the file again.",
        )
    experts, rows, *rest = extent.shape
    size = extent.num_bytes // experts // 2
    for number in range(experts):
        for half, word in enumerate(("gate", "up")):
            yield replace(
                extent,
                name=extent.name.replace(GATES_AND_UPS, f"ffn_{word}.{number}"),
                shape=(rows // 2, *rest),
                start=extent.start + (2 * number + half) * size,
                num_bytes=size,
            )
