"""PoolingParams: what one request asks of a model that pools instead of generating."""

from __future__ import annotations

import msgspec

from dovetail.errors import RequestError

EMBED = "embed"
CLASSIFY = "classify"
TOKEN_EMBED = "token_embed"
TOKEN_CLASSIFY = "token_classify"
TASKS = (EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY)
"""What may be made of a prompt: a vector, numbers of classes (one is a score), or either for each
of its tokens. A model can do some of them (`interfaces.spec.PoolingSpec.tasks`)."""


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of a prompt.

    `task` is one of TASKS ("": the call says it). `dimensions` keeps the first so many numbers of a
    vector, of models trained for it (Kusupati et al., Matryoshka Representation Learning, 2022).
    `is_normalized`
    scales vectors to length 1; `is_activated` turns the numbers of classes into probabilities; None
    does as the model says. The first `first_text_tokens` tokens of a prompt are its first text,
    where the model was trained to tell two texts apart (None: there is one). Its first
    `unpooled_tokens` tokens are an instruction; models that say so leave them out of the vector.
    """

    task: str = ""
    dimensions: int | None = None
    is_normalized: bool | None = None
    is_activated: bool | None = None
    first_text_tokens: int | None = None
    unpooled_tokens: int = 0

    def verify(self) -> None:
        """Check what needs no model. Raises: RequestError naming the field"""
        if self.task not in TASKS:
            raise RequestError(
                f'"{self.task}" is not a pooling task; there are: {", ".join(TASKS)}.', where="task"
            )
        if self.dimensions is not None and self.dimensions < 1:
            raise RequestError("must be at least 1.", where="dimensions")
