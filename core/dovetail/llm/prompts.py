"""The forms of prompts that LLM accepts: text, token ids or mappings, with media, one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dovetail.engine.client.requests.encoder_prompt import DECODER, ENCODER, EncoderPrompt
from dovetail.engine.client.requests.input_processor import Prompt
from dovetail.errors import RequestError
from dovetail.multimodal.given import Keys, given_media
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt, VectorPrompt
from dovetail.multimodal.vectors import FIELD as VECTORS

Prompts = Prompt | Mapping[str, Any] | Sequence[Prompt | Mapping[str, Any]]
MEDIA, NAMES, OPTIONS = "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"
SALT = "cache_salt"
T = TypeVar("T")


def listed(prompts: Prompts) -> list[Prompt]:
    """Return a list of prompts; a single one becomes a list of one. Raises: RequestError"""
    if isinstance(prompts, (str, Mapping, MediaPrompt, VectorPrompt, PlacedPrompt, EncoderPrompt)):
        return [_plain(prompts, {})]
    if len(prompts) > 0 and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    keys: Keys = {}
    return [_plain(prompt, keys) for prompt in prompts]  # type: ignore[arg-type]


def salts(prompts: Prompts, count: int) -> list[str]:
    """Return the cache salt of each prompt, "" if it has none."""
    each: Any = [prompts]
    if isinstance(prompts, Sequence) and not isinstance(prompts, str) and len(prompts) == count:
        each = prompts
    return [one.get(SALT) or "" if isinstance(one, Mapping) else "" for one in each]


def for_each(given: T | Sequence[T], count: int, what: str) -> list[T]:
    """Return one value per prompt, from one for all or one for each. Raises: ValueError when the
    number of values differs from the number of prompts"""
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{count} prompts, but {len(given)} {what}")
    return list(given)


def _plain(prompt: Prompt | Mapping[str, Any], keys: Keys) -> Prompt:
    """Convert a prompt that may be a mapping to a plain prompt. Raises: RequestError"""
    if not isinstance(prompt, Mapping):
        return prompt
    if set(prompt) <= {ENCODER, DECODER} and ENCODER in prompt:
        return _paired(prompt, keys)
    if set(prompt) == {VECTORS}:
        return VectorPrompt(vectors=prompt[VECTORS])
    texts = [key for key in ("prompt", "prompt_token_ids") if key in prompt]
    foreign = sorted(map(str, set(prompt) - {*texts, MEDIA, NAMES, OPTIONS, SALT}))
    if len(texts) != 1 or foreign:
        raise RequestError(
            f"a prompt with the keys {', '.join(map(str, prompt)) or 'none'} is not supported.",
            where="prompts",
            fix='write {"prompt": text} or {"prompt_token_ids": ids}, or either alone; '
            f'"{MEDIA}", "{NAMES}", "{OPTIONS}" and "{SALT}" may stand beside it; or "{VECTORS}" '
            "alone.",
        )
    plain = prompt[texts[0]]
    if not prompt.get(MEDIA):
        return plain  # type: ignore[no-any-return]
    return MediaPrompt(
        text=plain if isinstance(plain, str) else tuple(plain),
        media=given_media(prompt[MEDIA], prompt.get(NAMES) or {}, keys),
        options=dict(prompt.get(OPTIONS) or {}),
    )


def _paired(prompt: Mapping[str, Any], keys: Keys) -> EncoderPrompt:
    """Return an encoder prompt from its encoder and decoder parts. Raises: RequestError"""
    found = []
    for name in (ENCODER, DECODER):
        one = _plain(prompt[name], keys) if prompt.get(name) is not None else None
        if isinstance(one, (MediaPrompt, VectorPrompt, PlacedPrompt, EncoderPrompt)):
            raise RequestError("text or token ids alone stand here.", where=name)
        found.append(one)
    encoder, decoder = found
    if encoder is None:
        raise RequestError("give the encoder a text or token ids.", where=ENCODER)
    return EncoderPrompt(encoder=encoder, decoder=decoder)
