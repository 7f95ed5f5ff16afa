"""The matrix of classes that are vocabulary tokens, taken from a checkpoint's LM head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.weights import map_name

HEAD, SCORE = "lm_head.weight", "score.weight"


def with_class_rows(
    tensors: Iterable[tuple[str, torch.Tensor]],
    module: nn.Module,
    weight_map: WeightMap,
    model: ModelSpec,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a checkpoint's tensors and, last, the matrix of the model's `class_tokens`.

    It consists of rows of the LM head, or of the token table if that is the head. A checkpoint with
    neither yields no matrix, so that loading reports it as missing.
    """
    table = next(
        (
            f"{path}.weight"
            for path, part in module.named_modules()
            if isinstance(part, VocabParallelEmbedding)
        ),
        "",
    )
    rows: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        target = map_name(weight_map, name)
        if name.endswith(HEAD):
            rows[HEAD] = tensor[list(model.class_tokens)].float()
        elif target is not None and target.path == table:
            rows[table] = tensor[list(model.class_tokens)].float()
        yield name, tensor
    found = rows.get(HEAD, rows.get(table))
    if found is not None:
        yield SCORE, found[1:] - found[:1] if model.is_class_difference else found
