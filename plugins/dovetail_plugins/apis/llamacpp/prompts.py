"""The shapes of a prompt: text, token ids, both mixed, text with media, or a list of these.

Source: the API page of llama.cpp's server, /completion.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE
from dovetail.multimodal.content import MediaItem, check_counts
from dovetail.multimodal.prompt import PlacedPrompt
from dovetail.server.endpoint import ChatRequest, ModelText, RenderedPrompt
from dovetail.unsupported import sentence

MARKER = "<__media__>"
"""The text that represents a medium in `prompt_string`."""
TEXT, MEDIA = "prompt_string", "multimodal_data"
MAX_PROMPTS = 1024
AUDIO_STARTS = (b"RIFF", b"fLaC", b"ID3", b"OggS", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
"""First bytes of sound files; RIFF is also the start of WebP images, which say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """One prompt: texts and token ids in order, or a text with media in base64."""

    where: str
    pieces: tuple[str | int, ...]
    media: tuple[str, ...] = ()


def sent_prompts(value: Any, where: str = "prompt") -> list[SentPrompt]:
    """Return the prompts of a field. Raises: RequestError"""
    if value is None:
        raise RequestError(
            "is missing.", where=where, fix="send text, token ids, or a list of either."
        )
    if not isinstance(value, list) or any(_is_id(one) for one in value):
        return [_one(value, where)]
    if not value:
        raise RequestError("must not be empty.", where=where)
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"has more than {MAX_PROMPTS} prompts.", where=where)
    return [_one(one, f"{where}[{number}]") for number, one in enumerate(value)]


def _one(value: Any, where: str) -> SentPrompt:
    if isinstance(value, str):
        return SentPrompt(where=where, pieces=(value,))
    if isinstance(value, list) and value and all(_is_id(one) or _is_text(one) for one in value):
        return SentPrompt(where=where, pieces=tuple(value))
    if isinstance(value, dict) and isinstance(value.get(TEXT), str):
        media = value.get(MEDIA) or []
        if isinstance(media, list) and all(isinstance(one, str) for one in media):
            _check_markers(value[TEXT], len(media), where)
            return SentPrompt(where=where, pieces=(value[TEXT],), media=tuple(media))
    raise RequestError(
        f"should be text, token ids, a list that mixes them, or an object with {TEXT} and, in "
        f"base64, {MEDIA}.",
        where=where,
    )


def _check_markers(text: str, num_media: int, where: str) -> None:
    num_markers = text.count(MARKER)
    if num_markers != num_media:
        raise RequestError(
            f"has {num_markers} markers {MARKER} for {num_media} media.",
            where=f"{where}.{TEXT}",
            fix=f"write one marker for each entry of {MEDIA}.",
        )


def _is_id(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def _is_text(one: Any) -> bool:
    return isinstance(one, str)


async def read_prompt(text: ModelText, prompt: SentPrompt) -> Sequence[int] | PlacedPrompt:
    """Return a prompt in the engine's form. Raises: RequestError with the field `prompt`"""
    if not prompt.media:
        return await token_ids(text, prompt.pieces)
    return await _with_media(text, prompt)


async def token_ids(text: ModelText, pieces: Sequence[str | int]) -> list[int]:
    """Return the token ids of texts and ids in order. A text at the start gets the tokens that
    start every text. Raises: RequestError"""
    ids: list[int] = []
    size = text.vocabulary.num_tokens
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            text.check_text("prompt")
            ids += await text.tokenize(piece, add_special_tokens=number == 0)
        elif 0 <= piece < size:
            ids.append(piece)
        else:
            raise RequestError(f"valid token ids are 0 to {size - 1}.", where="prompt")
    return ids


async def _with_media(text: ModelText, prompt: SentPrompt) -> Sequence[int] | PlacedPrompt:
    """Return a text with its media at the markers' places."""
    settings = text.engine.spec.media
    if settings is None:
        raise RequestError(sentence("media"), where=MEDIA, code="unsupported_field")
    parts = str(prompt.pieces[0]).split(MARKER)
    items = [_item(data, f"{MEDIA}[{n}]") for n, data in enumerate(prompt.media)]
    for item in items:
        if item.kind not in settings.part_kinds:
            raise RequestError(f"this model takes no {item.kind}.", where=item.where)
    check_counts(items, settings.settings.limits)
    words = [text.engine.media_words[item.modality] for item in items]
    joined = parts[0] + "".join(w + after for w, after in zip(words, parts[1:], strict=True))
    rendered = RenderedPrompt(text=joined, tail="", media=tuple(items))
    return await text.read(rendered, ChatRequest.model_construct(add_special_tokens=True))


def _item(data: str, where: str) -> MediaItem:
    """Return the medium in base64; its first bytes show whether it is a sound."""
    try:
        head = b64decode(data.strip()[:24], validate=False)
    except binascii.Error as error:
        raise RequestError("is not valid base64.", where=where) from error
    is_sound = head.startswith(AUDIO_STARTS) and head[8:12] != b"WEBP"
    kind = AUDIO if is_sound else IMAGE
    return MediaItem(kind=kind, where=where, url=f"data:;base64,{data.strip()}")
