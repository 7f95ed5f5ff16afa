"""PoolingSpec: how a pooling model answers. Pure data, as in `spec`."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.data.selection import Selection


class ProjectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer after the pooler, of the `kind` "dense": activation(x W^T + b), "norm": a LayerNorm,
    or "normalize": to length 1. The first two have a folder, or a `name` in the model's one file.

    Format: the Dense, LayerNorm and Normalize modules of sentence-transformers.
    """

    folder: str
    in_size: int
    out_size: int
    has_bias: bool = False
    activation: str = ""
    kind: str = "dense"
    name: str = "linear"


class SpeechSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The sound that a model of speech makes: samples per second, and the names of its voices."""

    rate_hz: int
    voices: tuple[str, ...]


class PoolingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a pooling model's hidden states become answers.

    `tasks` are those of `interfaces.pooling_params` that requests may use, the default one first.
    `pooler` makes one vector of a prompt, `token_pooler` one for each token. Vectors then pass
    through `projections`; class scores through `activation` (one of ACTIVATIONS). `size` is a
    vector's number of dimensions; `is_normalized`: it is scaled to length 1. `sparse_task` gives
    the weights of words: EMBED one for each word of the vocabulary, TOKEN_CLASSIFY one for each
    token ("": no task does). `dimensions` is the default number of dimensions (None: all);
    `allowed_dimensions` are those that a request may choose (none: any, if `is_matryoshka`).
    `step_token_id` marks the ends of the steps that a process reward model scores;
    `returned_token_ids` are the classes that are returned, before the activation (none: all).
    `labels` names the classes. `prompts` maps names to texts put before the input; `default_prompt`
    is used if a request names none. The results of `prefix_tasks` depend only on the last token's
    hidden state, so a prompt's prefix may come from the cache. `includes_prompt` False: the tokens
    of such prompts are not pooled. With `lowers_case` texts are converted to lower case. With
    `splits_long` a prompt longer than the context is embedded in pieces, if it has at most
    `most_tokens` tokens (None: any number). `speech` is set for models of speech.
    """

    tasks: tuple[str, ...]
    pooler: Selection
    token_pooler: Selection
    projections: tuple[ProjectionSpec, ...] = ()
    activation: str = "identity"
    size: int = 0
    is_normalized: bool = False
    sparse_task: str = ""
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
    speech: SpeechSpec | None = None
