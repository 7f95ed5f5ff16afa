"""A row of 60 tokens computed in pieces, for tests of sparse attention."""

from __future__ import annotations

import torch

from dovetail_testing.harness import PagedModel


def pieces(model: PagedModel, tokens: list[int]) -> list[torch.Tensor]:
    """Return the logits of a row in pieces beside others (from token 7 on), of the row beside it
    (all), and of a prefix hit (tokens 32 to 50). Single tokens come last."""
    model.forward([(0, tokens[:7])])
    part, other = model.forward([(0, tokens[7:20]), (1, tokens[:32])])
    model.share(1, 2, 32)
    last, hit, more = model.forward([(1, tokens[32:]), (2, tokens[32:50]), (0, tokens[20:21])])
    rest = [model.forward([(0, [token])])[0] for token in tokens[21:]]
    return [torch.cat([part, more, *rest]), torch.cat([other, last]), hit]
