"""The prompts that a model was trained to see before its texts: "query: ", "Represent ...".

Source: config_sentence_transformers.json of sentence-transformers (prompts, default_prompt_name).
"""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.spec import PoolingSpec

_QUERY = ("query", "search_query", "retrieval.query", "s2p_query")
_DOCUMENT = ("document", "passage", "search_document", "retrieval.passage", "corpus")
_OTHER = ("classification", "clustering", "separation", "text-matching", "image")
INPUT_TYPES = frozenset({*_QUERY, *_DOCUMENT, *_OTHER})
"""Kinds of input as the clients of embedding APIs name them."""


def instruction(
    pooling: PoolingSpec, *, prompt_name: str | None, input_type: str | None = None
) -> str:
    """Return what stands before a text: the prompt of this name, or of this type of input, or the
    model's usual one. A type of input for which the model has no prompt needs none.

    Raises: RequestError for names that are not known
    """
    if prompt_name is not None:
        if prompt_name not in pooling.prompts:
            raise _unknown(pooling, "prompt_name")
        return pooling.prompts[prompt_name]
    if input_type is None:
        return pooling.prompts.get(pooling.default_prompt, "")
    names = next((names for names in (_QUERY, _DOCUMENT) if input_type in names), ())
    for name in (input_type, *names):
        if name in pooling.prompts:
            return pooling.prompts[name]
    if input_type not in INPUT_TYPES:
        raise _unknown(pooling, "input_type")
    return ""


def _unknown(pooling: PoolingSpec, where: str) -> RequestError:
    names = set(pooling.prompts) | (set(INPUT_TYPES) if where == "input_type" else set())
    known = f"there are: {', '.join(sorted(names))}." if names else "this model has none."
    return RequestError(f"is not known; {known}", where=where, fix="leave it out.")
