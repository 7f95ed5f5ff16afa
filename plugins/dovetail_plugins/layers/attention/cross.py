"""Cross attention: a decoder's queries over keys and values made from encodings.

For T tokens of a step and the W rows of encodings that begin with it (mostly none):

    q = query_proj(x)                       # [T, H*D]
    k, v = kv_proj(encodings)           # [W, H*D] each, cached for the whole request
    x = o_proj(softmax(scale q k^T) v)  # every query sees all encodings of its row

Source: Vaswani et al., "Attention is all you need", 2017, section 3.2.3
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.cross import CrossCache
from dovetail.layers.context import step_media
from dovetail.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from dovetail.parallel.groups import tensor_group


class CrossAttention(nn.Module):
    """Cross attention with its matrices. `encoder_size` is the width of encodings."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        max_rows: int,
        scale: float,
        bias: bool,
        encoder_size: int,
        kv_class: type[MergedColumnParallelLinear] = MergedColumnParallelLinear,
    ) -> None:
        super().__init__()
        model = context.model
        width, size = model.num_heads * model.head_size, model.hidden_size
        self.query_proj = ColumnParallelLinear(
            context, f"{name}.query_proj", size, width, bias=bias
        )
        self.kv_proj = kv_class(
            context, f"{name}.kv_proj", encoder_size, {"k": width, "v": width}, bias=bias
        )
        self.o_proj = RowParallelLinear(context, f"{name}.o_proj", width, size, bias=bias)
        heads = tensor_group(context.rank).share(model.num_heads, f"{name} heads")
        spec = AttentionSpec(
            num_heads=heads,
            num_kv_heads=heads,
            head_size=model.head_size,
            scale=scale,
            is_causal=False,
        )
        self.cache = CrossCache(name, spec, max_rows)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return residual plus the attention output. Shapes: x, residual [T, E] -> [T, E]"""
        media = step_media()
        q = self.query_proj(x)
        if media is None or media.encodings is None:
            k = v = q[:0]  # a view, so that steps that write nothing can be recorded
        else:
            k, v = self.kv_proj(media.encodings).split(self.kv_proj.spec.out_sizes, dim=-1)
        if media is not None and media.watch is not None:
            spec = self.cache.spec
            heads = (spec.num_heads, spec.head_size)
            media.watch.see(
                self.cache.name, spec.scale, q.unflatten(-1, heads), k.unflatten(-1, heads)
            )
        return self.o_proj(self.cache.attend(q, k, v), residual)


def cross_rows(context: BuildContext) -> int:
    """Return the maximum rows of an encoding, for a model that has an encoder."""
    model = context.model
    assert model.encoder is not None, "only a model with an encoder attends to encodings"
    return model.encoder.max_rows or context.max_tokens or model.max_position_tokens
