"""Tokenizer: text round trips, and streamed pieces join to exactly the decoded text."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_testing.tiny.models import write_tiny_tokenizer

TEXTS = (
    "",
    "a",
    "the dog does not mind",
    " two  spaces ",
    "line\nline\r\n\ttab",
    "caf\u00e9 na\u00efve e\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627",
    '{"k": [1, -2.5e3, "\\u00e9"]}',
    "\x00\x7f",
)
NUM_RANDOM = 50


@pytest.fixture
def folder(plugin: Any, tmp_path: Path) -> Path:
    """Return a folder with the kit's byte-level tokenizer, or skip."""
    path = write_tiny_tokenizer(tmp_path)
    reasons = plugin.why_not(str(path))
    if reasons:
        pytest.skip("; ".join(reasons))
    return path


@pytest.fixture
def tokenizer(plugin: Any, folder: Path) -> Tokenizer:
    """Return the tokenizer of the kit's folder."""
    new_tokenizer: Tokenizer = plugin(plugin.Options(), str(folder))
    return new_tokenizer


def streamed(tokenizer: Tokenizer, prompt: list[int], ids: list[int], **how: Any) -> list[str]:
    """Return the pieces of a stream, the flush last."""
    stream = tokenizer.stream(prompt, **how)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


class TestTokenizer:
    """Clauses of tokenizers."""

    kind = "tokenizer"

    def test_round_trip(self, tokenizer: Tokenizer) -> None:
        """Text encoded without special tokens decodes to itself."""
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text

    def test_parts(self, tokenizer: Tokenizer) -> None:
        """The parts' tokens are the tokens of the whole, none longer than the longest."""
        text = " ".join(TEXTS) * 1000
        for adds in (True, False):
            whole = tokenizer.encode(text, add_special_tokens=adds)
            parts = tokenizer.encode_parts(text, add_special_tokens=adds)
            assert [token_id for part in parts for token_id in part] == whole
        longest = tokenizer.longest_token_chars()
        assert longest is None or len(text) <= longest * len(whole)

    def test_plain_control_words(self, tokenizer: Tokenizer) -> None:
        """A control word is a token unless it is marked as plain."""
        facts = tokenizer.facts()
        end, word = facts.eos_token_id, facts.special_tokens["eos_token"]
        assert end is not None and word in tokenizer.added_texts()
        text = f"a {word} b{word}"
        spans = [(2, 2 + len(word)), (len(text) - len(word), len(text))]
        for plain in ([], spans[:1], spans[1:], spans):
            ids = tokenizer.encode_with_plain(text, plain, add_special_tokens=False)
            assert list(ids).count(end) == 2 - len(plain)
            assert tokenizer.decode(ids, skip_special_tokens=False) == text

    def test_pair_frame(self, tokenizer: Tokenizer) -> None:
        """Only special tokens are around and between two texts, of one text or the other."""
        frame = tokenizer.pair_frame()
        special = {*frame.before, *frame.between, *frame.after}
        assert special <= tokenizer.facts().special_ids
        assert 0 <= (frame.num_between_first or 0) <= len(frame.between)
        assert tokenizer.pair_frame() == frame

    def test_special_tokens(self, tokenizer: Tokenizer) -> None:
        """Special tokens are left out or shown, as requested."""
        end = tokenizer.facts().eos_token_id
        assert end is not None
        ids = [*tokenizer.encode("hi", add_special_tokens=False), end]
        assert tokenizer.decode(ids) == "hi"
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        assert shown.startswith("hi")
        assert len(shown) > 2

    def test_facts(self, tokenizer: Tokenizer) -> None:
        """The facts agree with each other."""
        facts = tokenizer.facts()
        ids = [token_id for text in TEXTS for token_id in tokenizer.encode(text)]
        assert facts.vocab_size > max(ids)
        assert facts.eos_token_id in facts.special_ids
        assert facts.chat_template
        assert all(isinstance(text, str) for text in facts.special_tokens.values())

    def test_stream_joins_to_decode(self, tokenizer: Tokenizer) -> None:
        """Joined pieces equal the decoded whole without the prompt's text."""
        for prompt_text in ("", "user: hi\n", "caf\u00e9 "):
            prompt = tokenizer.encode(prompt_text, add_special_tokens=False)
            for text in TEXTS:
                ids = tokenizer.encode(text, add_special_tokens=False)
                whole = tokenizer.decode([*prompt, *ids])[len(tokenizer.decode(prompt)) :]
                assert "".join(streamed(tokenizer, prompt, ids)) == whole

    def test_stream_of_any_tokens(self, tokenizer: Tokenizer) -> None:
        """It holds for random tokens too, valid text or not."""
        facts = tokenizer.facts()
        chance = random.Random(0)
        usable = [i for i in range(facts.vocab_size) if i not in facts.special_ids]
        for _ in range(NUM_RANDOM):
            ids = chance.choices(usable, k=chance.randrange(1, 20))
            assert "".join(streamed(tokenizer, [], ids)) == tokenizer.decode(ids)

    def test_stream_gives_whole_characters(self, tokenizer: Tokenizer) -> None:
        """No piece of valid text holds a replacement character."""
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert all("\ufffd" not in piece for piece in streamed(tokenizer, [], ids))

    def test_stream_shows_special_tokens_when_asked(self, tokenizer: Tokenizer) -> None:
        """skip_special_tokens is obeyed by streams."""
        end = tokenizer.facts().eos_token_id
        assert end is not None
        ids = [*tokenizer.encode("hi", add_special_tokens=False), end]
        assert "".join(streamed(tokenizer, [], ids)) == "hi"
        shown = "".join(streamed(tokenizer, [], ids, skip_special_tokens=False))
        assert shown == tokenizer.decode(ids, skip_special_tokens=False)

    def test_tokens_one_by_one(self, tokenizer: Tokenizer) -> None:
        """`tokens` gives one piece per id; for plain text they join to the text."""
        ids = tokenizer.encode("the dog, \U0001f600", add_special_tokens=False)
        assert len(tokenizer.tokens(ids)) == len(ids)
        plain = tokenizer.encode("the dog does", add_special_tokens=False)
        assert "".join(tokenizer.tokens(plain)) == "the dog does"

    def test_streams_are_apart(self, tokenizer: Tokenizer) -> None:
        """Two streams fed in turns do not mix."""
        texts = ("\U0001f600 one", "zw\u00f6lf")
        streams = [tokenizer.stream([]) for _ in texts]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        joined = ["", ""]
        for step in range(max(map(len, ids))):
            for number, stream in enumerate(streams):
                if step < len(ids[number]):
                    joined[number] += stream.push(ids[number][step])
        assert tuple(text + s.flush() for text, s in zip(joined, streams, strict=True)) == texts

    def test_threads(self, tokenizer: Tokenizer) -> None:
        """Several threads may use it concurrently."""
        wanted = [tokenizer.encode(text) for text in TEXTS]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                assert list(pool.map(tokenizer.encode, TEXTS)) == wanted

    def test_missing_folder(self, plugin: Any, folder: Path) -> None:
        """A folder without a tokenizer is a ConfigError that names it."""
        empty = folder / "nothing_here"
        empty.mkdir()
        with pytest.raises(ConfigError, match="nothing_here"):
            plugin(plugin.Options(), str(empty))
