"""The instructions that a model expects before its texts: "query: ", "Represent ...".

Source: config_sentence_transformers.json of sentence-transformers (prompts, default_prompt_name).
"""

from __future__ import annotations

from dovetail.engine.client.pooling.named_prompts import prompt_before
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import PoolingSpec

_QUERY = ("query", "search_query", "retrieval.query", "s2p_query")
_DOCUMENT = ("document", "passage", "search_document", "retrieval.passage", "corpus")
_OTHER = ("classification", "clustering", "separation", "text-matching", "image")
INPUT_TYPES = frozenset({*_QUERY, *_DOCUMENT, *_OTHER})
"""The kinds of input, as clients of embedding APIs name them."""


def instruction(
    pooling: PoolingSpec, *, prompt_name: str | None, input_type: str | None = None
) -> str:
    """Return the instruction with this name or for this input type, or else the model's default.

    It is empty for an input type for which the model has no instruction. Raises: RequestError for
    unknown names
    """
    if prompt_name is not None or input_type is None:
        return prompt_before(pooling, prompt_name)
    names = next((names for names in (_QUERY, _DOCUMENT) if input_type in names), ())
    for name in (input_type, *names):
        if name in pooling.prompts:
            return pooling.prompts[name]
    if input_type not in INPUT_TYPES:
        known = ", ".join(sorted({*pooling.prompts, *INPUT_TYPES}))
        raise RequestError(
            f"is not known; there are: {known}.", where="input_type", fix="leave it out."
        )
    return ""
