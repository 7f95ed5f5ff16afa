"""Bytes and offsets of tokens that are a piece of a character."""

from __future__ import annotations

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.generate.logprobs import TokenNames, chat_logprobs
from dovetail_plugins.apis.completions.logprobs import TextPlace
from dovetail_testing.fakes.engine import ByteTokenizer


class Bytes(ByteTokenizer):
    """One token per byte, which says so."""

    def token_bytes(self) -> list[bytes]:
        return [bytes([token_id]) for token_id in range(256)]


TEXT = "na\u00efve \u2615 ab"


def test_a_piece_of_a_character_has_its_own_bytes() -> None:
    tokenizer = Bytes(None, "")
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    positions = [
        TokenLogprobs(token_id=i, logprob=-1.0, rank=1, top_ids=(i,), top_logprobs=(-1.0,))
        for i in ids
    ]
    for writes_ids in (False, True):
        told = chat_logprobs(positions, 1, TokenNames(tokenizer=tokenizer, writes_ids=writes_ids))
        assert b"".join(bytes(one.bytes or []) for one in told) == TEXT.encode()
        assert all(one.top_logprobs[0].bytes == one.bytes for one in told)


def test_tokens_stand_where_their_character_does() -> None:
    tokenizer = Bytes(None, "")
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    place = TextPlace(tokenizer, (), start=3, skips_special=True)
    cuts = (ids[:4], ids[4:8], ids[8:])
    wanted = [3 + at for at, character in enumerate(TEXT) for _ in character.encode()]
    assert [offset for part in cuts for offset in place.offsets(part)] == wanted
