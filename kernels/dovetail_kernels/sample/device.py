"""Sampling on a device: inputs and outputs of the kernels. Does not import Triton."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from dovetail_kernels.op import Arguments
from dovetail_kernels.sample import definition
from dovetail_kernels.sample.native import Tables
from dovetail_kernels.sample.seen import on_device

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


def settings_of(
    tables: Tables,
    rows: np.ndarray,
    positions: np.ndarray,
    lines: np.ndarray,
    seen: torch.Tensor | None,
    device: torch.device,
) -> SamplingSettings:
    """Return the settings of rows of the tables, copied to the device without waiting.

    Shapes: rows, positions [S]; lines [S] the rows' slots in `seen`
    """
    top_k, top_p = tables.top_k[rows], tables.top_p[rows]
    inverse_temperature = tables.inverse_temperature[rows]
    is_random = inverse_temperature != 0
    columns = {
        "inverse_temperature": inverse_temperature,
        "top_k": top_k,
        "top_p": top_p,
        "least": tables.least[rows],
        "uniform": definition.uniforms(tables.seed[rows], positions),
        "repetition": tables.repetition[rows],
        "frequency": tables.frequency[rows],
        "presence": tables.presence[rows],
        "slot": lines,
    }
    has_top_p = bool((is_random & (top_p < 1.0)).any())
    return SamplingSettings(
        params=on_device(pack(columns), device),
        is_random=bool(is_random.any()),
        has_bounds=has_top_p or bool((is_random & (top_k > 0)).any()),
        has_top_p=has_top_p,
        seen=seen,
    )


def warm_up(logits: torch.Tensor) -> None:
    """Compile every variant that a call may need, with draws that change nothing.

    Shapes: logits [S, V], S at least 1
    """
    row = logits[:1]
    columns = {name: np.ones(1) for name in FIELD_NAMES} | {"top_p": np.full(1, 0.5)}
    columns |= {"uniform": np.zeros(1), "least": np.full(1, -np.inf), "slot": np.zeros(1)}
    params = on_device(pack(columns), row.device)
    for one in (row, row.float()):
        for seen in (None, torch.zeros(row.shape, dtype=torch.int32, device=row.device)):
            wanted = SamplingSettings(
                params=params, is_random=True, has_bounds=True, has_top_p=True, seen=seen
            )
            draw(one, wanted)


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
