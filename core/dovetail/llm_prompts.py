"""The prompts that LLM takes: text or token ids, plain or in a mapping, one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.engine.client.input import Prompt
from dovetail.errors import RequestError

Prompts = Prompt | Mapping[str, Any] | Sequence[Prompt | Mapping[str, Any]]


def listed(prompts: Prompts) -> list[Prompt]:
    """Return a list of prompts; a single one becomes a list of one. Raises: RequestError"""
    if isinstance(prompts, (str, Mapping)):
        return [_plain(prompts)]
    if len(prompts) > 0 and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return [_plain(prompt) for prompt in prompts]  # type: ignore[arg-type]


def _plain(prompt: Prompt | Mapping[str, Any]) -> Prompt:
    """Return text or token ids, taken out of a mapping. Raises: RequestError"""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) != 1 or not set(prompt) <= {"prompt", "prompt_token_ids"}:
        raise RequestError(
            f"a prompt with the keys {', '.join(map(str, prompt)) or 'none'} is not supported.",
            where="prompts",
            fix='write {"prompt": text} or {"prompt_token_ids": ids}, or either alone.',
        )
    (plain,) = prompt.values()
    return plain  # type: ignore[no-any-return]
