"""Pooler: reduces the hidden states of a prompt's tokens to one vector, or one vector per token.

Shape letters: n tokens of the prompt, E hidden size, m rows of the answer. Imports torch for type
checking only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.spec import PoolingSpec
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch


class Pooler(Plugin):
    """One stateless object per runner."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "last_token": "reads the last token's hidden state alone, so that what comes before it may "
        "be taken from the prefix cache",
        "first_token": "reads the first token's hidden state alone",
        "per_token": "answers with a vector for each of several tokens, not with one",
        "in_pieces": "the vectors of the pieces of a long prompt may be averaged, by their lengths",
    }

    def __init__(self, options: Any, spec: PoolingSpec) -> None:
        """Store the model's pooling settings. Raises: ConfigError"""
        self.options = options
        self.spec = spec

    @abstractmethod
    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the pooled states of one prompt. With last_token, `hidden` and `token_ids` may
        start anywhere before the last token; with first_token, they may end after any token.

        Shapes: hidden [n, E], token_ids n -> [E], with per_token [m, E]
        """
