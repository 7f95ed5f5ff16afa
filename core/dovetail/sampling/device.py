"""DeviceDraws: a step's draws as kernels on a device, started without waiting and read once.

The row parameters are uploaded in one copy, and the draws come back in one or two, with one event.
Draws the same tokens as the native kernels and the torch operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.sampling import rows as bits
from dovetail.sampling.rows import RowParams
from dovetail.sampling.step import DrawStep
from dovetail_kernels.sample import OP
from dovetail_kernels.sample.definition import MAX_VOCAB, uniforms
from dovetail_kernels.sample.device import FIELD_NAMES, SampledTokens, SamplingSettings, draw, pack
from dovetail_kernels.sample.penalties import Penalties
from dovetail_kernels.sample.seen import SeenTokens, on_device

TRITON = "triton"


def draws_on(device_type: str) -> bool:
    """Return whether the kernels run on this device type."""
    return OP.runs(TRITON, device_type, torch.float32)


class DeviceDraws:
    """The draws of one runner whose logits are on a device."""

    def __init__(self, params: RowParams, penalties: Penalties) -> None:
        self._params = params
        self.seen = SeenTokens(penalties, len(params.features))

    @staticmethod
    def can_draw(logits: torch.Tensor) -> bool:
        """Return whether the kernels support these logits."""
        return logits.shape[1] <= MAX_VOCAB and logits.stride(1) == 1

    @staticmethod
    def warm_up(logits: torch.Tensor) -> None:
        """Compile every kernel variant that steps may need, with draws that change nothing.

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

    def draw(self, logits: torch.Tensor, step: DrawStep) -> SampledTokens:
        """Draw one token per row and count it for penalties, without waiting.

        Shapes: logits [S, V]. Mutates: self
        """
        rows, tables = step.rows, self._params.tables
        lines = np.full(len(rows), -1)
        if step.union & bits.PENALISED:
            lines = self.seen.lines(rows, logits.shape[1], logits.device)
        top_k, top_p = tables.top_k[rows], tables.top_p[rows]
        is_random = (step.features & bits.RANDOM) != 0
        columns = {
            "inverse_temperature": tables.inverse_temperature[rows],
            "top_k": top_k,
            "top_p": top_p,
            "least": tables.least[rows],
            "uniform": uniforms(tables.seed[rows], step.positions),
            "repetition": tables.repetition[rows],
            "frequency": tables.frequency[rows],
            "presence": tables.presence[rows],
            "slot": lines,
        }
        has_top_p = bool((is_random & (top_p < 1.0)).any())
        wanted = SamplingSettings(
            params=on_device(pack(columns), logits.device),
            is_random=bool(is_random.any()),
            has_bounds=has_top_p or bool((is_random & (top_k > 0)).any()),
            has_top_p=has_top_p,
            seen=self.seen.table if step.union & bits.PENALISED else None,
        )
        return draw(logits, wanted)


class HostCopy:
    """Tensors on their way to the host. `wait` returns them in order."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = [_to_host(tensor) for tensor in tensors]
        if tensors[0].device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[np.ndarray]:
        """Return the tensors as arrays once all have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
