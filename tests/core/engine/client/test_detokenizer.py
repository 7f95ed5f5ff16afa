"""Detokenizer: whole characters, stop strings, min_tokens, and tokens that are not shown."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from dovetail.engine.client.results.detokenizer import Detokenizer
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.fakes.engine import BOS, EOS, ByteTokenizer
from support.drawn import given

TOKENIZER = ByteTokenizer(None, "")


def shown(token_ids: Sequence[int], params: SamplingParams) -> tuple[list[str], str | None]:
    detokenizer = Detokenizer(TOKENIZER, (), params)
    pieces = []
    for token_id in token_ids:
        pieces.append(detokenizer.push(token_id))
        if detokenizer.matched is not None:
            return pieces, detokenizer.matched
    return [*pieces, detokenizer.flush()], detokenizer.matched


@given(st.lists(st.integers(0, BOS), max_size=30), st.booleans())
def test_pieces_join_to_the_full_decode(token_ids: list[int], skips: bool) -> None:
    pieces, _ = shown(token_ids, SamplingParams(skip_special_tokens=skips))
    assert "".join(pieces) == TOKENIZER.decode(token_ids, skip_special_tokens=skips)


def test_no_half_characters() -> None:
    pieces, _ = shown(list("aü€😀".encode()), SamplingParams())
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == "aü€😀"


def test_an_unfinished_character_is_flushed_as_the_decode_shows_it() -> None:
    pieces, _ = shown(list("a€".encode()[:-1]), SamplingParams())
    assert "".join(pieces) == "a\ufffd"


def test_a_stop_string_over_several_tokens() -> None:
    pieces, matched = shown(list(b"one two"), SamplingParams(stop=("e tw",)))
    assert ("".join(pieces), matched) == ("on", "e tw")


def test_min_tokens_comes_before_stop_strings() -> None:
    pieces, matched = shown(list(b"xx x"), SamplingParams(stop=("x",), min_tokens=3))
    assert ("".join(pieces), matched) == ("xx ", "x")


def test_hidden_tokens_count_but_show_nothing() -> None:
    detokenizer = Detokenizer(TOKENIZER, (), SamplingParams(skip_special_tokens=False))
    assert detokenizer.push(EOS, is_shown=False) == ""
    assert detokenizer.num_tokens == 1
    assert detokenizer.push(EOS) == "<eos>"


def test_no_text_without_detokenize() -> None:
    pieces, _ = shown(list(b"abc"), SamplingParams(detokenize=False))
    assert "".join(pieces) == ""
