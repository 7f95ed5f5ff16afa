"""The purpose of a checkpoint: it generates, or pools its prompts, and how."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.interfaces.data.media_settings import AUDIO, IMAGE, VIDEO
from dovetail.interfaces.data.pooling_params import EMBED, SPEAK, TOKEN_CLASSIFY, TOKEN_EMBED
from dovetail.interfaces.data.spec import PoolingSpec
from dovetail_plugins.inspect.facts import Purpose

GENERATE = "generate"
_SHOWN = 6
_KINDS = {IMAGE: "images", VIDEO: "videos", AUDIO: "sound"}


def purpose_from(pooling: PoolingSpec | None) -> Purpose:
    """Return the purpose of a model."""
    if pooling is None:
        return Purpose(tasks=(GENERATE,))
    makes_vectors = pooling.tasks[0] in (EMBED, TOKEN_EMBED)
    is_of_tokens = pooling.tasks[0] in (TOKEN_EMBED, TOKEN_CLASSIFY)
    return Purpose(
        tasks=pooling.tasks,
        pooler=(pooling.token_pooler if is_of_tokens else pooling.pooler).name,
        dimensions=(pooling.dimensions or pooling.size) if makes_vectors else None,
        allowed_dimensions=pooling.allowed_dimensions if makes_vectors else (),
        is_normalized=makes_vectors and pooling.is_normalized,
        classes=() if makes_vectors or pooling.speech is not None else pooling.labels,
        prompts=tuple(pooling.prompts),
    )


def in_words(purpose: Purpose, media: Sequence[str] = ()) -> str:
    """Return the purpose of a model, which takes `media`, as one line."""
    if purpose.tasks == (GENERATE,):
        kinds = ["text", *(_KINDS.get(kind, kind) for kind in media)]
        of = f" from {', '.join(kinds[:-1])} and {kinds[-1]}" if media else ""
        return f"generates text{of}"
    if purpose.tasks == (SPEAK,):
        return "speaks texts"
    prompts = f", prompts: {_some(purpose.prompts)}" if purpose.prompts else ""
    if purpose.dimensions is None:
        return _classes(purpose) + prompts
    each = "one for each token" if purpose.tasks[0] == TOKEN_EMBED else f"{purpose.pooler} pooling"
    fewer = ", ".join(map(str, purpose.allowed_dimensions))
    return (
        f"vectors of {purpose.dimensions} dimensions, {each}"
        + (", normalized" if purpose.is_normalized else "")
        + (f", or of {fewer}" if fewer else "")
        + prompts
    )


def _classes(purpose: Purpose) -> str:
    """Return a description of the classes, and what is classified."""
    of = "of each token" if purpose.tasks[0] == TOKEN_CLASSIFY else "of a prompt"
    of += f" ({purpose.pooler} pooling)"
    if len(purpose.classes) == 1:
        return f"one number {of}: a score or a reward"
    return f"{len(purpose.classes)} classes {of}: {_some(purpose.classes)}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
