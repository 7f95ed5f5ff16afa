"""PoolingSpec: how a model that does not generate answers. Pure data, as in `spec`."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.selection import Selection


class ProjectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer behind the pooler, of the `kind` "dense": activation(x W^T + b), "norm": a LayerNorm,
    or "normalize": to length 1. The weights of the first two lie in a folder of their own.

    Format: the Dense, LayerNorm and Normalize modules of sentence-transformers.
    """

    folder: str
    in_size: int
    out_size: int
    has_bias: bool = False
    activation: str = ""
    kind: str = "dense"


class PoolingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's hidden states become answers, of a model that does not generate.

    `tasks` are those of `interfaces.pooling_params` that requests may ask for, the usual one first.
    `pooler` makes one vector of a prompt, `token_pooler` one for each token. Vectors then pass
    through `projections`; numbers of classes through `activation` (one of ACTIVATIONS). `size` is
    the number of a vector's dimensions; `is_normalized`: it gets the length 1. `dimensions` is the
    usual number of dimensions (None: all); `allowed_dimensions` are those that a request may ask
    for (none: any, if `is_matryoshka`). `step_token_id` marks the ends of the steps that a process
    reward model judges, and `returned_token_ids` are the classes that are told, before the
    activation (none: all). `labels` names the classes. `prompts` are put before texts by name, that
    of `default_prompt` where a request names none. What the `prefix_tasks` tell depends on the last
    token's hidden state alone, so that a prompt's prefix may come from the cache.
    `includes_prompt` False: the tokens of such prompts are not pooled. With `lowers_case` texts are
    read in lower case. With `splits_long` a prompt of more tokens than the context holds is
    embedded in pieces, if it has at most `most_tokens` (None: any number).
    """

    tasks: tuple[str, ...]
    pooler: Selection
    token_pooler: Selection
    projections: tuple[ProjectionSpec, ...] = ()
    activation: str = "identity"
    size: int = 0
    is_normalized: bool = False
    dimensions: int | None = None
    is_matryoshka: bool = False
    allowed_dimensions: tuple[int, ...] = ()
    step_token_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str = ""
    prefix_tasks: tuple[str, ...] = ()
    includes_prompt: bool = True
    lowers_case: bool = False
    splits_long: bool = False
    most_tokens: int | None = None
