"""Reads of earlier sums of hidden states: layers are in blocks, and what a block added is a stream
of its own, from which later parts of layers read by attention over depth.

For a token's streams s_1 .. s_n of E numbers, the last one that of the running block, and a learned
query w, with n_i = norm(s_i):

    read = sum over i of softmax(w . n_i / sqrt(E))_i n_i

Source: Thinking Machines Lab, Inkling 2, 2026, as transformers has it; Kimi Team, Attention
Residuals, 2026.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.decoder import DecoderConfig

READ_EPS = 1e-6


def read_streams(
    query: torch.Tensor, blocks: torch.Tensor, running: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return what each query reads. Shapes: query [Q, E], blocks [T, n, E], running [T, E] -> Q
    times [T, E] float32"""
    streams = torch.cat([blocks.float(), running.float().unsqueeze(1)], dim=1)
    size = streams.shape[-1]
    normed = F.rms_norm(streams, (size,), None, READ_EPS)
    weights = (normed @ query.float().mT * size**-0.5).softmax(dim=1)
    return torch.einsum("tnq,tne->qte", weights, normed).unbind()


class StreamRead(nn.Module):
    """Learned queries. Shapes: query [Q, E] float32"""

    def __init__(self, context: BuildContext, count: int = 1) -> None:
        super().__init__()
        empty = torch.empty(count, context.model.hidden_size, device=context.device)
        self.query = nn.Parameter(empty, requires_grad=False)

    def forward(self, blocks: torch.Tensor, running: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Shapes: blocks [T, n, E], running [T, E] -> Q times [T, E] float32"""
        return read_streams(self.query, blocks, running)


class LastRead(nn.Module):
    """The read after the last layer, and its norm."""

    def __init__(self, context: BuildContext, config: DecoderConfig) -> None:
        super().__init__()
        self.read = StreamRead(context)
        self.norm = config.build_norm(context)
        self._size = context.model.hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, (1 + n) E], the running block first -> [T, E]"""
        streams = x.unflatten(-1, (-1, self._size))
        (found,) = self.read(streams[:, 1:], streams[:, 0])
        out: torch.Tensor = self.norm(found.to(x.dtype))
        return out


class MessageGate(nn.Module):
    """A state and a message about it, mixed number by number by what both say, through a few
    numbers in between:

        g = down [norm(h), norm(m)],   (1 - tanh(forget g)) h + tanh(gain g) m

    Shapes: down_weight [R, 2 E], forget_weight and gain_weight [E, R], float32
    """

    def __init__(self, context: BuildContext, rank: int, *, eps: float) -> None:
        super().__init__()
        size, self._eps = context.model.hidden_size, eps

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=context.device), requires_grad=False)

        self.down_weight = empty(rank, 2 * size)
        self.forget_weight, self.gain_weight = empty(size, rank), empty(size, rank)

    def forward(self, hidden: torch.Tensor, message: torch.Tensor) -> torch.Tensor:
        """Shapes: hidden and message [T, E] float32 -> [T, E] float32"""
        normed = (F.rms_norm(x, x.shape[-1:], None, self._eps) for x in (hidden, message))
        inner = F.linear(torch.cat([*normed], dim=-1), self.down_weight)
        forget, gain = (F.linear(inner, w).tanh() for w in (self.forget_weight, self.gain_weight))
        return (1 - forget) * hidden + gain * message
