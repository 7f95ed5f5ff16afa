"""EncoderPrompt: the input of an encoder-decoder model: the encoder's input and the decoder's
prompt.

A plain prompt is the encoder's; the decoder then starts with the checkpoint's start tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import Feature, PartPlace, PromptPart
from dovetail.interfaces.data.sampling_params import Alignment
from dovetail.interfaces.data.spec import EncoderSpec

ENCODER, DECODER = "encoder_prompt", "decoder_prompt"
TEXT = "text"
TOKEN_IDS = "token_ids"
"""The input feature of a text encoder. Shapes: [S] int64"""
PlainPrompt = str | Sequence[int]
Ids = Callable[[PlainPrompt], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPrompt:
    """The encoder's input: text, token ids, or features of other data. The decoder continues its
    own prompt (None: the checkpoint's start tokens). Unless that `is_whole`, the decoder start
    token is put before it."""

    encoder: PlainPrompt | PromptPart
    decoder: PlainPrompt | None = None
    is_whole: bool = False

    def __len__(self) -> int:
        """Return the approximate length of the text to tokenize."""
        return 0 if isinstance(self.encoder, PromptPart) else len(self.encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompt:
    """An EncoderPrompt as token ids. `sent` are counted as the request's prompt."""

    sent: tuple[int, ...]
    decoder: tuple[int, ...]
    part: PromptPart


def read_prompt(
    prompt: EncoderPrompt, encoder: EncoderSpec, max_rows: int, ids_of: Ids, plain_ids_of: Ids
) -> ReadPrompt:
    """Return both prompts as token ids. `ids_of` tokenizes a text with special tokens around it,
    `plain_ids_of` without. Raises: RequestError"""
    decoder = encoder.start_ids
    if prompt.decoder is not None:
        decoder = plain_ids_of(prompt.decoder)
        if not prompt.is_whole and decoder[: len(encoder.start_ids[:1])] != encoder.start_ids[:1]:
            decoder = (*encoder.start_ids[:1], *decoder)
    if not decoder:
        raise RequestError(
            "the checkpoint does not say what its decoder begins with.",
            where=DECODER,
            fix="send a decoder_prompt, or set decoder_start_token_id with --hf-overrides.",
        )
    if isinstance(prompt.encoder, PromptPart):
        return ReadPrompt(sent=decoder, decoder=decoder, part=prompt.encoder)
    if encoder.kind != TEXT:
        raise RequestError(
            f"this model reads {encoder.kind}, not text.",
            where=PROMPT,
            fix="send it to /v1/audio/transcriptions, or as multi_modal_data.",
        )
    sent = ids_of(prompt.encoder)
    if not sent:
        raise RequestError("the prompt is empty.", where=PROMPT)
    if len(sent) > max_rows:
        raise RequestError(
            f"the prompt has {len(sent)} tokens, and the encoder reads at most {max_rows}.",
            where=PROMPT,
            fix="send a shorter one.",
        )
    return ReadPrompt(sent=sent, decoder=decoder, part=text_part(sent))


def verify_alignment(alignment: Alignment | None, encoder: EncoderSpec | None) -> None:
    """Check a request's alignment by cross attention. Raises: RequestError"""
    if alignment is None:
        return
    if encoder is None:
        raise RequestError("only a model with an encoder aligns its prompt.", where="alignment")
    if alignment.first < 0 or not 1 <= alignment.num_rows <= (
        encoder.max_rows or alignment.num_rows
    ):
        raise RequestError("names tokens or rows that there are not.", where="alignment")


def text_part(ids: Sequence[int]) -> PromptPart:
    """Return the encoder input for a text's token ids."""
    data = array("q", ids).tobytes()
    place = PartPlace(hashlib.sha256(b"text" + data).hexdigest(), TEXT, (), len(ids))
    return PromptPart(place=place, features=(Feature(TOKEN_IDS, "int64", (len(ids),), data),))
