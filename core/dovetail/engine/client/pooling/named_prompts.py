"""The named prompts of a sentence-transformers checkpoint: instructions put before a text."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import PoolingSpec


def prompted(prompt: str, text: str) -> str:
    """Return a text with a prompt before it, or around it where the prompt says "{text}"."""
    before, _, after = prompt.partition("{text}")
    return before + text + after


def prompt_before(pooling: PoolingSpec | None, name: str | None = None) -> str:
    """Return the prompt of a name (None: the checkpoint's default); empty if there is none.

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
