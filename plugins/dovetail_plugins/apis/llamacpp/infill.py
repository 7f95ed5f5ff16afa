"""The prompt of /infill: prefix, suffix and context, in the order that the model was trained with.

Source: the API page of llama.cpp's server, /infill; Hui et al. 2024, Qwen2.5-Coder (the pattern of
repositories).
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.errors import RequestError
from dovetail.server.endpoint import ModelText
from dovetail_plugins.apis._infill import Infill, infill_of, suffix_ids
from dovetail_plugins.apis.llamacpp.protocol import ExtraFile, InfillRequest

PROJECT, FILE, PIECE = "myproject\n", "filename\n", "tmp"
"""The names in a prompt: of the project, of the file that is edited, and of a piece without one."""
MIN_ROOM = 16
SUFFIX_SHARE = 4
"""One part of so many is the suffix's if both are too long."""


async def infill_prompt(text: ModelText, body: InfillRequest) -> Sequence[int]:
    """Return the token ids. What is too long for the context loses its far ends: first the context,
    then the start of the prefix and the end of the suffix. Raises: RequestError"""
    text.check_text("input_prefix")
    tokenizer, suffix = text.vocabulary.tokenizer, body.input_suffix
    verify_text("input_suffix", suffix)
    infill = infill_of(tokenizer)
    before = await _ids(text, body.input_prefix)
    after = await text.threads.run(lambda: suffix_ids(tokenizer, suffix), len(suffix))
    middle = await _ids(text, body.prompt)
    context: Sequence[int] = await _context(text, infill, body.input_extra or ())
    start = infill.repository[:1]
    room = _room(text, body) - len(infill.prompt((), ())) - len(start) - len(middle)
    if room < MIN_ROOM:
        raise RequestError("leaves no room for prefix and suffix.", where="n_predict")
    num_after = min(len(after), max(room // SUFFIX_SHARE, room - len(before)))
    num_before = min(len(before), room - num_after)
    whole = infill.prompt(_last(before, num_before), after[:num_after])
    context = _last(context, room - num_before - num_after)
    num_head = len(infill.head)
    return [*whole[:num_head], *start, *context, *whole[num_head:], *middle]


def _last(ids: Sequence[int], num: int) -> Sequence[int]:
    return ids[max(len(ids) - num, 0) :]


async def _ids(text: ModelText, words: str) -> Sequence[int]:
    return await text.tokenize(words, add_special_tokens=False, takes_any_length=True)


def _room(text: ModelText, body: InfillRequest) -> int:
    """Return how many tokens a prompt may have, so that the answer has room."""
    limit = text.engine.spec.run.max_model_tokens
    max_tokens = body.max_tokens if body.max_tokens and body.max_tokens > 0 else limit // 4
    return limit - min(max_tokens, limit // 2)


async def _context(text: ModelText, infill: Infill, extras: Sequence[ExtraFile]) -> list[int]:
    """Return the tokens before the prefix, without the one that starts a repository: its files, for
    a model that knows them; else only the texts."""
    if not infill.repository:
        found: list[int] = []
        for extra in extras:
            found += await _ids(text, extra.text)
        return found
    separator = infill.repository[1]
    found = [*await _ids(text, PROJECT)]
    for extra in extras:
        name = extra.filename or PIECE
        found += [separator, *await _ids(text, f"{name}\n{extra.text}\n")]
    return [*found, separator, *await _ids(text, FILE)]
