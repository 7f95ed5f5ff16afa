"""ModelTokenizer: a model's tokenizer with the methods that files expect of transformers'."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dovetail.interfaces.tokenizer import Tokenizer


class MistralTokenizer:
    """A name for isinstance: no tokenizer here is one."""


class ModelTokenizer:
    """One for all requests. A token goes by its text: "<tool_call>", or " the" for a word."""

    is_fast = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._facts = tokenizer.facts()

    @cached_property
    def _vocab(self) -> dict[str, int]:
        texts = self._tokenizer.tokens(range(self._facts.vocab_size))
        found: dict[str, int] = {}
        for token_id, text in enumerate(texts):
            found.setdefault(text, token_id)
        return found | {text: token_id for token_id, text in self._facts.special_texts.items()}

    def get_vocab(self) -> dict[str, int]:
        """Return every token's id by its text."""
        return self._vocab

    vocab = property(get_vocab)

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the special tokens by their text."""
        return {text: token_id for token_id, text in self._facts.special_texts.items()}

    def __len__(self) -> int:
        return self._facts.vocab_size

    def __bool__(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        """Return how many tokens there are."""
        return self._facts.vocab_size

    @property
    def max_token_id(self) -> int:
        """Return the highest id."""
        return self._facts.vocab_size - 1

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the token ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def __call__(self, text: str, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return the token ids of a text under "input_ids"."""
        return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}

    def decode(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Return the text of token ids."""
        given = [ids] if isinstance(ids, int) else list(ids)
        return self._tokenizer.decode(given, skip_special_tokens=skip_special_tokens)

    def tokenize(self, text: str, **options: Any) -> list[str]:
        """Return the tokens of a text, each by its own text."""
        return self._tokenizer.tokens(self.encode(text, add_special_tokens=False))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or of each; None for a text that is not one."""
        if isinstance(tokens, str):
            return self._vocab.get(tokens)
        return [self._vocab.get(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int], **options: Any) -> Any:
        """Return the text of a token, or of each."""
        if isinstance(ids, int):
            return self._tokenizer.tokens([ids])[0]
        return self._tokenizer.tokens(list(ids))

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return "".join(tokens)

    @property
    def all_special_ids(self) -> list[int]:
        """Return the ids of the special tokens."""
        return sorted(self._facts.special_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        """Return the texts of the special tokens."""
        return [text for _, text in sorted(self._facts.special_texts.items())]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Return the texts of the special tokens that have a name."""
        return dict(self._facts.special_tokens)

    @property
    def chat_template(self) -> str | None:
        """Return the checkpoint's own template."""
        return self._facts.chat_template

    @property
    def bos_token_id(self) -> int | None:
        """Return the id of the token that begins a text."""
        return self._facts.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """Return the id of the token that ends an answer."""
        return self._facts.eos_token_id

    @property
    def bos_token(self) -> str | None:
        """Return the token that begins a text."""
        return self._facts.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Return the token that ends an answer."""
        return self._facts.special_tokens.get("eos_token")

    @property
    def pad_token(self) -> str | None:
        """Return the token that fills batches."""
        return self._facts.special_tokens.get("pad_token")

    @property
    def unk_token(self) -> str | None:
        """Return the token of what has none."""
        return self._facts.special_tokens.get("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        """Return the id of the token of what has none."""
        return None if self.unk_token is None else self._vocab.get(self.unk_token)
