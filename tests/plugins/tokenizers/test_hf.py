"""The tokenizers equal transformers' own, and streams equal one decode of everything."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import NoOptions
from dovetail_plugins.tokenizers._fast import FastTokenizer
from dovetail_plugins.tokenizers.hf import HfTokenizer, TransformersTokenizer
from support.small_tokenizers import byte_level, sentencepiece_like, unigram

TEXTS = (
    "",
    "the quick brown fox",
    " leading and  double spaces ",
    "Grüße, 世界! 🙂🙃 naïve é\n\ttabs",
    "<s>the dog</s> and <|end|> then",
    "a<|begin|>b <|tool|>c",
)


GPT = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama3-like": (lambda: byte_level(True), GPT),
    "gpt2-like": (lambda: byte_level(False), GPT),
    "gpt2-adds-both": (
        lambda: byte_level(False),
        {**GPT, "add_bos_token": True, "add_eos_token": True},
    ),
    "explicit-no-bos": (lambda: byte_level(True), {**GPT, "add_bos_token": False}),
    "extra-tokens": (
        lambda: byte_level(True),
        {
            **GPT,
            "pad_token": "<|pad|>",
            "additional_special_tokens": ["<|tool|>"],
        },
    ),
    "sentencepiece-like": (sentencepiece_like, LLAMA),
    "sentencepiece-adds-eos": (
        sentencepiece_like,
        {**LLAMA, "add_bos_token": True, "add_eos_token": True},
    ),
    "unigram": (unigram, LLAMA),
}


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build, settings = CASES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    build().save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=[HfTokenizer, TransformersTokenizer])
def tokenizer(request: pytest.FixtureRequest, folder: Path) -> HfTokenizer:
    made = request.param(NoOptions(), str(folder))
    assert isinstance(made, HfTokenizer)
    return made


def test_equals_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    ours = HfTokenizer(NoOptions(), str(folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        for adds in (True, False):
            ids = theirs.encode(text, add_special_tokens=adds)
            assert ours.encode(text, add_special_tokens=adds) == ids, text
            for skips in (True, False):
                want = theirs.decode(ids, skip_special_tokens=skips)
                assert ours.decode(ids, skip_special_tokens=skips) == want, text
    facts = ours.facts()
    assert facts.bos_token_id == theirs.bos_token_id
    assert facts.eos_token_id == theirs.eos_token_id
    assert facts.vocab_size == len(theirs)
    assert facts.special_ids >= set(theirs.all_special_ids)
    assert facts.max_tokens == 512


def streamed(tokenizer: HfTokenizer, prompt: list[int], ids: list[int], *, skips: bool) -> str:
    stream = tokenizer.stream(prompt, skip_special_tokens=skips)
    return "".join([*(stream.push(i) for i in ids), stream.flush()])


@pytest.mark.parametrize("skips", [True, False])
def test_a_stream_sums_to_the_whole(tokenizer: HfTokenizer, skips: bool) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        for cut in range(len(ids) + 1):
            prompt, rest = ids[:cut], ids[cut:]
            whole = tokenizer.decode(ids, skip_special_tokens=skips)
            own = tokenizer.decode(prompt, skip_special_tokens=skips).rstrip("\ufffd")
            if not whole.startswith(own):
                continue  # a byte run that the prompt cuts decodes differently as a whole
            assert streamed(tokenizer, prompt, rest, skips=skips) == whole[len(own) :]


@pytest.mark.parametrize("skips", [True, False])
def test_a_stream_of_random_tokens_sums_to_the_whole(tokenizer: HfTokenizer, skips: bool) -> None:
    draw = random.Random(7)
    for _ in range(60):
        ids = [draw.randrange(tokenizer.facts().vocab_size) for _ in range(draw.randrange(1, 25))]
        whole = tokenizer.decode(ids, skip_special_tokens=skips)
        assert streamed(tokenizer, [], ids, skips=skips) == whole


def test_a_stream_shows_no_half_character(tokenizer: HfTokenizer) -> None:
    ids = tokenizer.encode("naïve 🙂 世界 é the end", add_special_tokens=False)
    whole = tokenizer.decode(ids)
    stream = tokenizer.stream([])
    pieces = [stream.push(i) for i in ids]
    assert all("\ufffd" not in p for p in pieces) or "\ufffd" in whole
    assert "".join([*pieces, stream.flush()]) == whole


def test_text_comes_early(folder: Path) -> None:
    tokenizer = HfTokenizer(NoOptions(), str(folder))
    ids = tokenizer.encode("the dog and the fox", add_special_tokens=False)
    stream = tokenizer.stream([])
    shown = ""
    for n, token_id in enumerate(ids, 1):
        shown += stream.push(token_id)
        assert shown == tokenizer.decode(ids[:n])


def test_tokens_are_own_pieces(folder: Path) -> None:
    tokenizer = HfTokenizer(NoOptions(), str(folder))
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    assert "".join(tokenizer.tokens(ids)).strip() == "the dog"
    assert len(tokenizer.tokens([10**6])) == 1


def test_names_are_those_of_the_vocabulary(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = HfTokenizer(NoOptions(), str(folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert tokenizer.names(ids) == theirs.convert_ids_to_tokens(ids)


def test_bytes_of_some_tokens_are_those_of_the_table(tokenizer: HfTokenizer) -> None:
    written = tokenizer.token_bytes()
    ids = [len(written) - 1, 0, len(written) // 2]
    assert tokenizer.bytes_of(ids) == [written[token_id] for token_id in ids]


def test_tokens_with_characters_that_no_byte_has_are_plain_text() -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokens = {"a": b"a", "\u0120b": b" b", "a b": b"a b", "\u65e5": "\u65e5".encode(),
              "\xad": "\xad".encode(), "\u0143": b"\xad"}  # fmt: skip
    vocabulary = {token: i for i, token in enumerate(tokens)}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
               "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}  # fmt: skip
    ours = FastTokenizer(Path("tokenizer.json"), content=json.dumps(content), settings={})
    assert ours.token_bytes() == list(tokens.values())


def test_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        HfTokenizer(NoOptions(), str(tmp_path))
    with pytest.raises(ConfigError, match="does not exist"):
        HfTokenizer(NoOptions(), str(tmp_path / "nowhere"))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*download"):
        HfTokenizer(NoOptions(), str(tmp_path))


def test_chat_templates_from_all_places(tmp_path: Path) -> None:
    byte_level(False).save(str(tmp_path / "tokenizer.json"))
    settings = {
        "chat_template": [
            {"name": "default", "template": "old"},
            {"name": "tool_use", "template": "tools"},
        ],
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    facts = HfTokenizer(NoOptions(), str(tmp_path)).facts()
    assert (facts.chat_template, facts.chat_templates["tool_use"]) == ("old", "tools")
    assert facts.special_tokens["bos_token"] == "<s>"
    (tmp_path / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert HfTokenizer(NoOptions(), str(tmp_path)).facts().chat_template == "new"
