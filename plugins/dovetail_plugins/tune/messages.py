"""The messages between `dovetail tune` and the process of a trial: lines of JSON.

The boot message is the EngineSpec. The process answers it with Loaded, then each Ask with its
answer, or with Failed, after which it ends.
"""

from __future__ import annotations

import msgspec


class Write(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write texts at temperature 1, or, with a path, read them from a file. Answer: Texts"""

    path: str | None
    num_texts: int
    text_tokens: int


class Judge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute the logarithm of each token's probability, but for the first of each text. Answer:
    Judged"""

    texts: list[list[int]]


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer these prompts together, greedily, with exactly `answer_tokens` tokens. `salt` keeps
    them apart from other prompts in the prefix cache. Answer: Answered"""

    prompts: list[list[int]]
    answer_tokens: int
    salt: str


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine is loaded."""


class Texts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Texts as token ids."""

    texts: list[list[int]]


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The logarithms of the tokens' probabilities, of all texts in order."""

    logprobs: list[float]


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How long the answers took together."""

    total_s: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reason why there is no answer."""

    reason: str


Ask = Write | Judge | Answer
Reply = Loaded | Texts | Judged | Answered | Failed
