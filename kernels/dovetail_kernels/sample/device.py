"""Sampling on a device: inputs and outputs of the kernels. Does not import Triton."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from dovetail_kernels.op import Arguments
from dovetail_kernels.sample import definition

FIELD_NAMES = (
    "inverse_temperature",
    "top_k",
    "top_p",
    "least",
    "uniform",
    "repetition",
    "frequency",
    "presence",
    "slot",
)
"""The numbers of a row, in the order in which kernels read them; `least` is the logarithm of min-p,
`slot` the row's line in `seen`, -1 without penalties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The sampling settings of a step's rows. `params` [S, fields] float64 is on the device (see
    `pack`); `is_random`: some row has a temperature, `has_bounds`: a top-k or a top-p, `has_top_p`:
    a top-p.

    `seen` [slots, V] int32 has for each token of a row with penalties 0 if it was not seen, else 1
    plus the number of times it was sampled; None if no row has penalties.
    """

    params: torch.Tensor
    is_random: bool
    has_bounds: bool
    has_top_p: bool
    seen: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The tokens of one call. Shapes: tokens [S] int64, 0 if no best logit is finite;

    `told` [S, 3] int64: the token again, and the bits of the largest logits after penalties (NaN if
    one is) and before.
    """

    tokens: torch.Tensor
    told: torch.Tensor


def pack(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the numbers of rows that kernels read, exactly. Shapes: all [S] -> [S, fields]"""
    packed = np.empty((len(columns["slot"]), len(FIELD_NAMES)), dtype=np.float64)
    for i, name in enumerate(FIELD_NAMES):
        packed[:, i] = columns[name]
    return packed


def prepare(arguments: Arguments) -> Arguments:
    """Return the op's arguments as the kernels take them: all but the logits packed once."""
    on_host = {name: arguments[name].cpu() for name in arguments if name != "logits"}
    seeds, count = on_host["seed"].numpy().view(np.uint64), len(on_host["seed"])
    columns = {
        **{name: on_host[name].numpy() for name in ("inverse_temperature", "top_k", "top_p")},
        "least": on_host["min_p"].log().float().numpy(),
        "uniform": definition.uniforms(seeds, on_host["position"].numpy()),
        **dict.fromkeys(("repetition", "frequency", "presence"), np.ones(count)),
        "slot": np.full(count, -1.0),
    }
    wanted = SamplingSettings(
        params=torch.from_numpy(pack(columns)).to(arguments["logits"].device),
        is_random=bool((on_host["inverse_temperature"] != 0).any()),
        has_bounds=bool(((on_host["top_k"] > 0) | (on_host["top_p"] < 1)).any()),
        has_top_p=bool((on_host["top_p"] < 1).any()),
    )
    return {"logits": arguments["logits"], "wanted": wanted}


def draw(logits: torch.Tensor, wanted: SamplingSettings) -> SampledTokens:
    """Sample one token per row; rows of logits may be strided. It does not wait for the device.

    Shapes: logits [S, V] of any float dtype
    Mutates: wanted.seen: sampled tokens are counted
    """
    drawn: SampledTokens = import_module("dovetail_kernels.sample.triton").draw(logits, wanted)
    return drawn
