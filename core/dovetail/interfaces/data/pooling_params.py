"""PoolingParams: the options of one request to a pooling model."""

from __future__ import annotations

import msgspec

from dovetail.errors import RequestError

EMBED = "embed"
CLASSIFY = "classify"
TOKEN_EMBED = "token_embed"
TOKEN_CLASSIFY = "token_classify"
TASKS = (EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY)
"""The tasks on a prompt: a vector, class scores (one is a score), or either for each of its tokens.
A model supports some of them (`interfaces.spec.PoolingSpec.tasks`)."""
SPEAK = "speak"
"""The task of models of speech: the samples of a text's sound."""


class SpeechParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a text is spoken: with the voice of this number, at this rate in relation to the model's
    own, and with the noise of this seed."""

    voice: int = 0
    rate: float = 1.0
    seed: int = 0

    def verify(self, num_voices: int) -> None:
        """Check the numbers. Raises: RequestError naming the field"""
        if not 0 <= self.voice < num_voices:
            raise RequestError(f"must be 0 to {num_voices - 1}.", where="speech.voice")
        if not 0.1 <= self.rate <= 10.0:
            raise RequestError("must be 0.1 to 10.", where="speech.rate")
        if not 0 <= self.seed < 1 << 63:
            raise RequestError("must be 0 to 2^63 - 1.", where="speech.seed")


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to pool a prompt.

    `task` is one of TASKS ("": set by the call). `dimensions` truncates a vector to its first
    numbers, for models trained for it (Kusupati et al., Matryoshka Representation Learning, 2022).
    `is_normalized` scales vectors to length 1; `is_activated` turns class scores into
    probabilities; None follows the model. The first `first_text_tokens` tokens of a prompt are its
    first text, for models trained to distinguish two texts (None: there is only one). Its first
    `unpooled_tokens` tokens are an instruction, which some models exclude from the vector. `speech`
    is for the task SPEAK alone.
    """

    task: str = ""
    dimensions: int | None = None
    is_normalized: bool | None = None
    is_activated: bool | None = None
    first_text_tokens: int | None = None
    unpooled_tokens: int = 0
    speech: SpeechParams = SpeechParams()

    def verify(self) -> None:
        """Check what needs no model. Raises: RequestError naming the field"""
        if self.task not in (*TASKS, SPEAK):
            raise RequestError(
                f'"{self.task}" is not a pooling task; there are: {", ".join(TASKS)}.', where="task"
            )
        if self.dimensions is not None and self.dimensions < 1:
            raise RequestError("must be at least 1.", where="dimensions")
