"""vocabulary_of(tokenizer): the bytes of a model's tokens, as backends need them."""

from __future__ import annotations

from dovetail import registry
from dovetail.interfaces.spec import Selection
from dovetail.interfaces.structured_output import Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, eos_ids: tuple[int, ...], size: int) -> Vocabulary:
    """Return the vocabulary of a model whose logits have `size` entries."""
    facts = tokenizer.facts()
    special = frozenset(i for i in (*facts.special_ids, *eos_ids) if i < size)
    written = tokenizer.token_bytes()[:size]
    written += [b""] * (size - len(written))
    return Vocabulary(
        tokens=[b"" if i in special else text for i, text in enumerate(written)],
        special={written[i].decode(): i for i in sorted(special) if written[i]},
        special_ids=special,
        eos_ids=eos_ids or (() if facts.eos_token_id is None else (facts.eos_token_id,)),
        size=size,
    )


def load_vocabulary(
    tokenizer: Selection, path: str, eos_ids: tuple[int, ...], size: int
) -> Vocabulary:
    """Return the vocabulary of a tokenizer plugin and folder."""
    made: Tokenizer = registry.make(tokenizer, path)
    return vocabulary_of(made, eos_ids, size)
