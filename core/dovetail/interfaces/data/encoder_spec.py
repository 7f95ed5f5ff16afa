"""EncoderSpec: the encoder of a model whose decoder attends to it. Pure data, as in `spec`."""

from __future__ import annotations

import msgspec


class EncoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The encoder of an encoder-decoder model. Its input is of a `kind`, "text" or "audio". An
    encoding has at most `max_rows` rows (0: as many as the context has tokens). The decoder begins
    with `start_ids`. `alignment_heads` are (layer, head) pairs of the decoder that attend to the
    time at which a token was heard (empty: the checkpoint names none)."""

    kind: str
    max_rows: int = 0
    start_ids: tuple[int, ...] = ()
    alignment_heads: tuple[tuple[int, int], ...] = ()
