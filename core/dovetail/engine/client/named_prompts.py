"""The prompts of a sentence-transformers folder: texts that stand before what is embedded."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.spec import PoolingSpec


def prompt_before(pooling: PoolingSpec | None, name: str | None = None) -> str:
    """Return the prompt of a name (None: of the checkpoint's usual one); empty where there is none.

    Raises: RequestError for a name that the checkpoint does not have.
    """
    prompts = {} if pooling is None else pooling.prompts
    if name is None:
        usual = "" if pooling is None else pooling.default_prompt
        return prompts.get(usual, "")
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise RequestError(
            f'the checkpoint has no prompt "{name}"; there are: {known}.',
            where="prompt_name",
            fix="leave it out, or write the prompt into the text.",
        )
    return prompts[name]
