"""MediaPrompt: a text with media, which becomes token ids and parts.

Placeholders in the text are replaced by the processor's text for each medium, the text is
tokenized, and the tokens that take vectors become the places of parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.data.media import PartPlace, PromptPart, ReadMedium
from dovetail.multimodal.reader import MediaReader

if TYPE_CHECKING:
    import torch


class EncodeFunction(Protocol):
    """Turns a text into token ids."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """An image (PIL), a video (frames [F, H, W, 3]) or a sound (numbers, at a rate), and the key of
    its content: same key, same features. `content` decodes it. `name` is the client's name; without
    a key it means the medium last read under that name."""

    kind: str
    key: str
    content: Callable[[], Any]
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPrompt:
    """A prompt with media, in the order of their placeholders in `text` (or among its token ids).
    `options` are for the model's processor; with `begins` the tokenizer adds the begin token."""

    text: str | tuple[int, ...]
    media: tuple[Medium, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    begins: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VectorPrompt:
    """A prompt in vectors, one per position. Shapes: vectors [P, E], or [1, P, E]"""

    vectors: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPrompt:
    """A prompt as token ids, and its parts (media or vectors)."""

    token_ids: tuple[int, ...]
    parts: tuple[PromptPart, ...] = ()


def content_key(kind: str, *parts: bytes | memoryview | str) -> str:
    """Return the key of a content, given all that its features depend on. A memoryview has
    bytes."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def placed(prompt: MediaPrompt, reader: MediaReader, encode: EncodeFunction) -> PlacedPrompt:
    """Return a prompt as token ids and parts. Raises: RequestError"""
    suffix = f"|{sorted(prompt.options.items())}" if prompt.options else ""
    _check_kinds(prompt.media, reader)
    if reader.takes_one_alone:
        _check_alone(prompt, reader)
    keys = [
        f"{reader.key_of(one.kind, one.key, one.name)}{suffix}{reader.mark_of(one.kind)}"
        for one in prompt.media
    ]
    read = [
        reader.read(medium.kind, key, medium.content, prompt.options)
        for medium, key in zip(prompt.media, keys, strict=True)
    ]
    read = [
        msgspec.structs.replace(one, text=reader.numbered(one.text, index))
        for index, one in enumerate(read)
    ]
    if reader.takes_one_alone:
        page, begins = reader.laid_out(read[0].text)
        ids = tuple(encode(page, add_special_tokens=begins)) if page else (0,)
    elif isinstance(prompt.text, str):
        laid_out, begins = reader.laid_out(prompt.text)
        text = _expanded(laid_out, prompt.media, read, reader)
        ids = tuple(encode(text, add_special_tokens=prompt.begins and begins))
    else:
        ids = _expanded_ids(prompt.text, prompt.media, read, reader, encode)
    parts = []
    for kind, token_id in reader.token_ids.items():
        places = [i for i, one in enumerate(ids) if one == token_id]
        of_kind = [n for n, medium in enumerate(prompt.media) if medium.kind == kind]
        if len(places) != sum(read[n].num_rows for n in of_kind):
            raise RequestError(
                f"the prompt has {len(places)} places for the vectors of {kind}s, and they have "
                f"{sum(read[n].num_rows for n in of_kind)}.",
                where="prompt",
                fix=f"write {reader.placeholder(kind)!r} once for each {kind}, nowhere else.",
            )
        for n in of_kind:
            mine, places = places[: read[n].num_rows], places[read[n].num_rows :]
            one = read[n]
            facts = one.num_rows, one.shape, one.times, one.kept
            place = PartPlace(keys[n], kind, _runs(mine), *facts)
            parts.append(PromptPart(place=place, features=read[n].features))
    parts.sort(key=lambda part: part.place.start)
    return PlacedPrompt(token_ids=ids, parts=tuple(parts))


def _check_kinds(media: Sequence[Medium], reader: MediaReader) -> None:
    for medium in media:
        if medium.kind not in reader.kinds:
            known = ", ".join(sorted(reader.kinds)) or "no media"
            raise RequestError(
                f"this model does not take media of the kind {medium.kind}; it takes {known}.",
                where=medium.kind,
                code="unsupported_media",
            )
    kinds = sorted({medium.kind for medium in media})
    if reader.takes_one_kind and len(kinds) > 1:
        raise RequestError(
            f"this model takes media of one kind in a prompt, not {' and '.join(kinds)}.",
            where=media[-1].kind,
            fix="send a request for each kind.",
            code="unsupported_media",
        )


def _check_alone(prompt: MediaPrompt, reader: MediaReader) -> None:
    """Raise RequestError unless a prompt is one medium without a text."""
    words = ("", (), *map(reader.placeholder, reader.kinds))
    if len(prompt.media) != 1 or prompt.text not in words:
        raise RequestError(
            "a prompt of this model is a text or one image, never both.",
            where="prompt",
            fix="send them in separate prompts.",
            code="unsupported_media",
        )


def _expanded(
    text: str, media: Sequence[Medium], read: Sequence[ReadMedium], reader: MediaReader
) -> str:
    """Return the text with each placeholder replaced. Raises: RequestError"""
    waiting = {
        kind: iter([r for m, r in zip(media, read, strict=True) if m.kind == kind])
        for kind in reader.kinds
    }
    of_text = {reader.placeholder(kind): kind for kind in reader.kinds}
    pattern = "|".join(re.escape(text) for text in sorted(of_text, key=len, reverse=True))

    def replaced(match: re.Match[str]) -> str:
        kind = of_text[match.group()]
        found = next(waiting[kind], None)
        if found is None:
            raise RequestError(
                f"the prompt has more places ({match.group()}) than there are {kind}s.",
                where="prompt",
                fix=f"send as many {kind}s, or leave {match.group()} out of the text.",
            )
        return found.text

    expanded = re.sub(pattern, replaced, text)
    for kind, left in waiting.items():
        if next(left, None) is not None:
            raise RequestError(
                f"the prompt has fewer places ({reader.placeholder(kind)}) than {kind}s.",
                where="prompt",
                fix=f"write {reader.placeholder(kind)} where each {kind} belongs.",
            )
    return expanded


def _expanded_ids(
    ids: Sequence[int],
    media: Sequence[Medium],
    read: Sequence[ReadMedium],
    reader: MediaReader,
    encode: EncodeFunction,
) -> tuple[int, ...]:
    """Return token ids with each placeholder token replaced, unless they are expanded already."""
    wanted = {
        kind: sum(r.num_rows for m, r in zip(media, read, strict=True) if m.kind == kind)
        for kind in reader.kinds
    }
    counts = {kind: ids.count(reader.token_ids[kind]) for kind in reader.kinds}
    if counts == wanted:
        return tuple(ids)
    found: list[int] = []
    kinds = {token_id: kind for kind, token_id in reader.place_ids.items()}
    waiting = {
        kind: iter([r for m, r in zip(media, read, strict=True) if m.kind == kind])
        for kind in reader.kinds
    }
    for one in ids:
        medium = next(waiting[kinds[one]], None) if one in kinds else None
        found += [one] if medium is None else encode(medium.text, add_special_tokens=False)
    return tuple(found)


def _runs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (first, count) of each run of consecutive places."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return tuple(runs)
