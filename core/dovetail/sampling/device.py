"""DeviceDraws: a step's draws as kernels on a device, begun without waiting and read once.

What kernels are told of the rows goes over in one copy, and what they drew comes back in one or
two, behind one event. Draws what the native kernels and the torch operations draw. Knows no
processor and no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.step import TokenLogprobs
from dovetail.sampling import rows as bits
from dovetail.sampling.logprobs import FLOOR, listed, order_keys
from dovetail.sampling.penalties import Penalties
from dovetail.sampling.rows import RowParams
from dovetail.sampling.seen import SeenTokens, on_device
from dovetail.sampling.step import DrawStep
from dovetail_kernels.sample import OP
from dovetail_kernels.sample.definition import MAX_VOCAB, WEIGHT_UNITS, uniforms, weights
from dovetail_kernels.sample.device import FIELD_NAMES, Drawn, Wanted, draw, pack
from dovetail_kernels.sample.native import Logprobs

TRITON = "triton"
HEAD = 4
"""Numbers of a row's logprobs before its top tokens: the sum of weights, the rank, and the bits of
the largest logit and of the token's own."""


def draws_on(device_type: str) -> bool:
    """Return whether the kernels run on this kind of device."""
    return OP.runs(TRITON, device_type, torch.float32)


class DeviceDraws:
    """The draws of one runner whose logits lie on a device."""

    def __init__(self, params: RowParams, penalties: Penalties) -> None:
        self._params = params
        self.seen = SeenTokens(penalties, len(params.features))

    @staticmethod
    def can_draw(logits: torch.Tensor) -> bool:
        """Return whether the kernels take these logits."""
        return logits.shape[1] <= MAX_VOCAB and logits.stride(1) == 1

    @staticmethod
    def warm_up(logits: torch.Tensor) -> None:
        """Compile every variant of the kernels that steps may need, by draws that change nothing.

        Shapes: logits [S, V], S at least 1
        """
        row = logits[:1]
        columns = {name: np.ones(1) for name in FIELD_NAMES} | {"top_p": np.full(1, 0.5)}
        columns |= {"uniform": np.zeros(1), "least": np.full(1, -np.inf), "slot": np.zeros(1)}
        params = on_device(pack(columns), row.device)
        for one in (row, row.float()):
            for seen in (None, torch.zeros(row.shape, dtype=torch.int32, device=row.device)):
                wanted = Wanted(
                    params=params, is_random=True, has_bounds=True, has_top_p=True, seen=seen
                )
                draw(one, wanted)

    def draw(self, logits: torch.Tensor, step: DrawStep) -> Drawn:
        """Draw one token per row and count it where there are penalties; nothing is waited for.

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
        wanted = Wanted(
            params=on_device(pack(columns), logits.device),
            is_random=bool(is_random.any()),
            has_bounds=has_top_p or bool((is_random & (top_k > 0)).any()),
            has_top_p=has_top_p,
            seen=self.seen.table if step.union & bits.PENALISED else None,
        )
        return draw(logits, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLogprobs:
    """Logprobs on the device of some of a step's rows, and how many top tokens each asked for.

    `numbers` [S', HEAD + 2 n]: see HEAD; then n ids and the bits of their logits.
    """

    numbers: torch.Tensor
    sizes: list[int]


def tell(logits: torch.Tensor, tokens: torch.Tensor, num_top: Sequence[int]) -> ToldLogprobs:
    """Return logprobs of tokens by torch operations that nobody waits for.

    Shapes: logits [S', V], tokens [S'] int64, num_top [S'] (-1: the whole vocabulary)
    """
    vocab = logits.shape[1]
    sizes = [vocab if n < 0 else min(n, vocab) for n in num_top]
    logits = logits.float()
    chosen = logits.gather(1, tokens.unsqueeze(1))
    best = logits.amax(dim=1, keepdim=True)
    parts = [
        weights(logits - best).sum(dim=1, dtype=torch.int64).unsqueeze(1),
        (logits > chosen).sum(dim=1, keepdim=True) + 1,
        _bits(best),
        _bits(chosen),
    ]
    largest = max(sizes, default=0)
    if largest:
        ids = order_keys(logits).topk(largest, dim=1).indices
        parts += [ids, _bits(logits.gather(1, ids))]
    return ToldLogprobs(numbers=torch.cat(parts, dim=1), sizes=sizes)


def read(
    told: ToldLogprobs, numbers: np.ndarray, token_ids: Sequence[int], *, tells_logits: bool
) -> list[TokenLogprobs]:
    """Return the logprobs whose numbers have come to the host. Rows at fault may hold anything.

    Shapes: numbers [S', HEAD + 2 n], token_ids [S']
    """
    size = (numbers.shape[1] - HEAD) // 2
    total, rank = numbers[:, 0], numbers[:, 1]
    best, chosen = floats(numbers[:, 2]), floats(numbers[:, 3])
    ids, values = numbers[:, HEAD : HEAD + size], floats(numbers[:, HEAD + size :])
    if tells_logits:
        logprob, top_logprobs = np.maximum(chosen, FLOOR), np.maximum(values, FLOOR)
    else:
        with np.errstate(all="ignore"):
            norm = np.log(total * 2.0**-WEIGHT_UNITS) + best
            logprob = np.clip(chosen - norm, FLOOR, 0.0)
            top_logprobs = np.clip(values - norm[:, None], FLOOR, 0.0)
    found = Logprobs(logprob=logprob, rank=rank, top_ids=ids, top_logprobs=top_logprobs)
    return listed(found, range(len(token_ids)), token_ids, told.sizes)


def floats(numbers: np.ndarray) -> np.ndarray:
    """Return the floats whose bits the integers are. Shapes: [..] int64 -> the same float64"""
    return numbers.astype(np.int32).view(np.float32).astype(np.float64)


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of floats. Shapes: [..] float32 -> the same int64"""
    return values.contiguous().view(torch.int32).long()


class Reading:
    """Tensors on their way to the host. `wait` gives them, in their order."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = [_to_host(tensor) for tensor in tensors]
        if tensors[0].device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[np.ndarray]:
        """Return the tensors as arrays once all have come."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
