"""A draft head's own vocabulary: the part of the model's tokens that its rows stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec


class DraftVocabulary:
    """The model's tokens of the rows of a head, as the checkpoint's `d2t` says: row i is token
    i + d2t[i]. Without d2t rows and tokens are the same."""

    def __init__(self, model: ModelSpec, device: str | torch.device) -> None:
        config = model.hf_config
        fewer = config.get("draft_vocab_size") or config.get("truncated_vocab_size")
        self.num_tokens = model.vocab_size
        self.num_rows = int(fewer or model.vocab_size)
        self._device = device
        self._token_ids: torch.Tensor | None = None

    def read(self, found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a checkpoint without d2t. Raises: ConfigError. Mutates: self"""
        shifts = None
        for name, tensor in found:
            if name.removeprefix("model.") == "d2t":
                shifts = tensor
            else:
                yield name, tensor
        self._token_ids = self._tokens_of(shifts)

    def of_all(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits over the model's vocabulary. Shapes: [S, rows] -> [S, V]"""
        if self._token_ids is None:
            return logits
        every = logits.new_full((len(logits), self.num_tokens), -torch.inf)
        return every.index_copy_(1, self._token_ids, logits)

    def _tokens_of(self, shifts: torch.Tensor | None) -> torch.Tensor | None:
        """Return the token of each row, None if they are the same. Shapes: [rows]"""
        if shifts is None and self.num_rows == self.num_tokens:
            return None
        fault = "has no d2t, which says what its rows stand for"
        if shifts is not None:
            tokens = torch.arange(len(shifts)) + shifts.cpu().long()
            is_known = bool(((tokens >= 0) & (tokens < self.num_tokens)).all())
            if is_known and len(tokens) == self.num_rows:
                return tokens.to(self._device)
            fault = f"has a d2t that does not fit {self.num_rows} of {self.num_tokens} tokens"
        raise ConfigError(
            f"the head of a smaller vocabulary {fault}.",
            where="--speculative-config.model",
            fix="check that config.json and the weight files belong to each other.",
        )
