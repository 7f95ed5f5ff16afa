"""Media that a Python program passes as objects: pictures, frames, samples."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any

import numpy as np

from dovetail.errors import RequestError
from dovetail.interfaces.data.media import feature_of
from dovetail.interfaces.data.media_settings import VIDEO
from dovetail.multimodal.content import (
    Embeddings,
    Image,
    LoadedMedium,
    Named,
    Sound,
    Video,
    invalid,
)
from dovetail.multimodal.extra import package
from dovetail.multimodal.prompt import Medium, content_key
from dovetail.multimodal.reader import KINDS

Keys = MutableMapping[tuple[str, int], tuple[Any, str]]
"""Objects and the keys of their contents, by kind and identity."""


def given_media(
    data: Mapping[str, Any], names: Mapping[str, Any], keys: Keys
) -> tuple[Medium, ...]:
    """Return media of `{"image": one or a list, ...}`; `names` has names in the same layout.

    Mutates: keys, so that an object in many prompts is read once. Raises: RequestError
    """
    media = []
    for kind, given in data.items():
        if kind not in KINDS:
            raise RequestError(
                f"{kind!r} is not a kind of media.",
                where="multi_modal_data",
                fix=f"use {', '.join(KINDS)}.",
            )
        items = given if isinstance(given, list) else [given]
        named = names.get(kind)
        named = named if isinstance(named, list) else [named] * len(items)
        for given_item, name in zip(items, named, strict=True):
            item = _with_facts(kind, given_item)
            if name is None and item is None:
                raise RequestError("neither content nor a name.", where=f"multi_modal_data.{kind}")
            if name is not None:
                key = content_key(kind, str(name))
            else:
                place = kind, id(given_item)
                if place not in keys:  # the object is stored: another could reuse its id
                    keys[place] = given_item, _key(kind, item)
                key = keys[place][1]
            content = partial(_unknown, kind, name) if item is None else partial(_same, item)
            media.append(Medium(kind=kind, key=key, content=content))
    return tuple(media)


def _with_facts(kind: str, item: Any) -> Any:
    """Return an item; a pair of frames and facts about their video becomes a Video.
    Raises: RequestError"""
    is_pair = kind == VIDEO and isinstance(item, tuple) and len(item) == 2
    if not is_pair or not isinstance(item[1], Mapping):
        return item
    frames, facts = np.asarray(item[0]), item[1]
    indices = facts.get("frames_indices")
    indices = range(len(frames)) if indices is None else indices
    if len(indices) != len(frames):
        raise RequestError(
            f"{len(frames)} frames, and {len(indices)} frames_indices.",
            where=f"multi_modal_data.{kind}",
        )
    return Video(
        frames=frames,
        frame_indices=tuple(int(index) for index in indices),
        num_frames=int(facts.get("total_num_frames") or len(frames)),
        fps=float(facts.get("fps") or 0.0),
    )


def as_medium(loaded: LoadedMedium) -> Medium:
    """Return a request's medium in the form for prompts. Raises: RequestError"""
    item = loaded.item
    return Medium(
        kind=item.modality, key=loaded.digest, content=partial(_as_object, loaded), name=item.uuid
    )


def _as_object(loaded: LoadedMedium) -> Any:
    """Return a decoded medium in the form for the reader."""
    content = loaded.content
    if isinstance(content, Image):
        return package("PIL.Image").fromarray(content.pixels)
    if isinstance(content, Named):
        what = f'nothing is known of the uuid "{loaded.item.uuid}".'
        raise invalid(loaded.item, what, "send the data.")
    return content


def _unknown(kind: str, name: Any) -> Any:
    raise RequestError(
        f"nothing is known of the name {name!r}.",
        where=f"multi_modal_uuids.{kind}",
        fix="give the content.",
    )


def _key(kind: str, item: Any) -> str:
    """Return the key of an object's content. Raises: RequestError"""
    if isinstance(item, Video):
        facts = f"{item.frame_indices} {item.num_frames} {item.fps}"
        return content_key(kind, *_bytes(kind, item.frames), facts)
    if isinstance(item, Sound):
        return content_key(kind, *_bytes(kind, item.samples), str(item.rate_hz))
    if isinstance(item, Embeddings):
        parts = [feature_of(name, one) for name, one in sorted(item.tensors.items())]
        return content_key(kind, *(part for one in parts for part in (one.name, one.data)))
    if isinstance(item, tuple) and len(item) == 2:  # samples and their rate
        return content_key(kind, *_bytes(kind, item[0]), str(item[1]))
    return content_key(kind, *_bytes(kind, item))


def _bytes(kind: str, item: Any) -> tuple[str, memoryview]:
    """Return the layout of an object's numbers, and their bytes. Raises: RequestError"""
    mode = getattr(item, "mode", "")
    try:
        numbers = np.asarray(item)
    except Exception as error:
        raise RequestError(f"this {kind} cannot be read: {error}", where=kind) from error
    if numbers.dtype == object:
        raise RequestError(
            f"{type(item).__name__} is not of the kind {kind}.",
            where=kind,
            fix="give a picture of PIL, or an array of numbers.",
        )
    layout = f"{mode}{numbers.shape}{numbers.dtype}"
    return layout, numbers.reshape(-1).view(np.uint8).data


def _same(item: Any) -> Any:
    return item
