"""Every kind of GGUF vocabulary gives the ids of a tokenizer of the Hugging Face library that is
put together as the models' own tokenizer.json puts it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.vocabulary.read import read_tokenizer
from dovetail_plugins.gguf.vocabulary.splits import KINDS
from dovetail_plugins.tokenizers.gguf import GgufTokenizer

gguf = pytest.importorskip("gguf")

TRAINING = (
    "The quick brown fox doesn't mind: it'll jump over 12345 lazy dogs, won't it? I'VE SEEN IT!",
    "def f(x, y=None):\n\treturn {'a': [1.5e-3, x**2]}  # naïve café, Ärger über Straße\r\n\r\n",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u8fd9\u662f\u6d4b\u8bd5\u3002 "
    "\u3053\u3093\u306b\u3061\u306f\u30c6\u30b9\u30c8",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8\uc785\ub2c8\ub2e4 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u0645\u0631\u062d\u0628\u0627",
    "rock'stars d'accord I'LLamas y'all've; camelCase SNAKE_CASE "
    "HTTPServer https://a.b/c?d=1&e=2 `code` $5 <b>~|^</b> 7,000.50",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e "
    "e\u0301 \U0001f642\U0001f642 \u2026 \u00a0end   ",
)
ALPHABET = (
    "aZé'sSt  \n\r\t1234567890.,!?`$<\u4f60\uff01\ud55c\u30c6\u0915\u094d\u0301\u041f\U0001f642_/"
)
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{SHORT}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
ASIAN = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    r"\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+{SHORT}?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*{SHORT}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def split(*expressions: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(one), "isolated") for one in expressions]


def letters(*, cuts: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts)


def digits() -> Any:
    return pre_tokenizers.Digits(individual_digits=True)


def v1_cased() -> str:
    """Return the letters of the DeepSeek LLM's expression that the texts here use."""
    return "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0391-\u03a1\u0400-\u0481"


PUBLISHED: dict[str, list[Any]] = {
    "gpt-2": [letters(cuts=True)],
    "starcoder": [digits(), letters(cuts=True)],
    "mellum2": [digits(), letters(cuts=True)],
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        letters(cuts=True),
        pre_tokenizers.Digits(individual_digits=False),
        *split("[0-9][0-9][0-9]"),
    ],
    "llama-bpe": [*split(CL100K), letters()],
    "glm4": [*split(CL100K), letters()],
    "qwen2": [*split(CL100K.replace("{1,3}", "")), letters()],
    "qwen35": [
        *split(
            SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        letters(),
    ],
    "gpt-4o": [*split(O200K), letters()],
    "minimax-m2": [*split(O200K), letters()],
    "tekken": [*split(O200K.replace(f"{SHORT}?", "").replace("{1,3}", "")), letters()],
    "deepseek-llm": [
        *split("[\r\n]", rf"\s?[{v1_cased()}]+",
               r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
               r"\s+$", HAN),
        digits(),
        letters(),
    ],
    "deepseek-coder": [*split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN), digits(), letters()],
    "deepseek-v3": [
        *split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", V3), letters()
    ],
    "afmoe": [*split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", ASIAN, V3), letters()],
    "kimi-k2": [*split(KIMI), letters()],
    "minicpm5": [*split(r"\p{N}{1,3}", CL100K.replace("{1,3}", "+")), letters()],
    "tiny_aya": [*split(r"\d{1,3}(?=(?:\d{3})*\b)", O200K), letters()],
    "bailingmoe": [
        *split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        letters(),
    ],
    "bloom": [
        *split(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"), letters()
    ],
}  # fmt: skip
COMPOSING = {"qwen2", "qwen35"}


def texts(seed: int) -> list[str]:
    """Return texts of all scripts, whole and cut up at random."""
    chance = random.Random(seed)
    made = ["".join(chance.choices(ALPHABET, k=chance.randint(1, 40))) for _ in range(300)]
    return ["", *TRAINING, " ".join(TRAINING), *made]


def trained(steps: list[Any], *, composes: bool = False) -> Tokenizer:
    """Return a tokenizer of byte pairs that cuts words by these steps."""
    made = Tokenizer(models.BPE())
    if composes:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*TRAINING, *(text * 3 for text in TRAINING)], trainer)
    return made


def written(
    path: Path,
    tokens: list[str],
    kinds: list[int],
    *,
    model: str = "gpt2",
    pre: str | None = None,
    merges: list[str] | None = None,
    ids: dict[str, int] | None = None,
) -> GgufTokenizer:
    """Write a GGUF file of a vocabulary; return its tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if pre:
        writer.add_tokenizer_pre(pre)
    if merges:
        writer.add_token_merges(merges)
    for name, number in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}", number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufTokenizer(GgufTokenizer.Options(), str(path))


def in_order(made: Tokenizer) -> list[str]:
    return [token for token, _ in sorted(made.get_vocab().items(), key=lambda item: item[1])]


def merges_of(made: Tokenizer) -> list[str]:
    import json

    return [" ".join(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_are_those_of_the_published_tokenizer(tmp_path: Path, name: str) -> None:
    right = trained(PUBLISHED[name], composes=name in COMPOSING)
    tokens = in_order(right)
    own = written(
        tmp_path / "m.gguf",
        tokens,
        [3, *[1] * (len(tokens) - 1)],
        pre=name,
        merges=merges_of(right),
    )
    for text in texts(len(name)):
        wanted = right.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_special_tokens=False) == wanted, repr(text)
        assert own.decode(wanted) == right.decode(wanted)


@pytest.mark.parametrize("text", ["für 12345", "x² ½ ¼5 ü7", "٣٤٥ und 1234", "№ Ⅷ ៣៤ a1b22c333"])
def test_falcons_numbers_are_those_of_the_bytes_letters(tmp_path: Path, text: str) -> None:
    """A byte of "ü" is written "¼", which is a number; those of "٣" are written as letters."""
    right = trained(PUBLISHED["falcon"])
    tokens = in_order(right)
    kinds = [3, *[1] * (len(tokens) - 1)]
    file = tmp_path / "m.gguf"
    written(file, tokens, kinds, pre="falcon", merges=merges_of(right))
    own = Tokenizer.from_str(read_tokenizer(file)[0])
    assert [word for word, _ in own.pre_tokenizer.pre_tokenize_str(text)] == [
        word for word, _ in right.pre_tokenizer.pre_tokenize_str(text)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [("1234567", ["1", "234", "567"]), ("a12", ["a", "12"]), ("123456", ["123", "456"])],
)
def test_afmoes_digits_are_threes_from_the_end(text: str, words: list[str]) -> None:
    steps = pre_tokenizers.Sequence(split(*KINDS["afmoe"].cuts))
    assert [word for word, _ in steps.pre_tokenize_str(text)] == words


def test_kinds_are_told_apart() -> None:
    """The texts tell kinds apart, so that one with another's expressions would be noticed."""
    found: dict[Any, list[str]] = {}
    for kind in dict.fromkeys(KINDS.values()):
        steps = pre_tokenizers.Sequence(split(*kind.cuts))
        words = tuple(tuple(w for w, _ in steps.pre_tokenize_str(text)) for text in texts(0))
        name = next(name for name, one in KINDS.items() if one == kind)
        flags = (kind.composes, kind.takes_whole, kind.begins, kind.raw)
        found.setdefault((words, flags), []).append(name)
    alike = [names for names in found.values() if len(names) > 1]
    assert alike == [["deepseek-r1-qwen", "bailingmoe"]], "these two differ in spelling alone"


def test_kimis_file_without_merges(tmp_path: Path) -> None:
    right = trained(PUBLISHED["kimi-k2"])
    tokens = in_order(right)
    kinds = [3, *[1] * (len(tokens) - 1)]
    own = written(tmp_path / "m.gguf", tokens, kinds, pre="kimi-k2")
    for text in texts(1):
        wanted = right.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_special_tokens=False) == wanted, repr(text)


@pytest.mark.parametrize(
    ("pre", "told"),
    [("gpt-2", "no merges"), ("superb", '"superb" is not known.*--tokenizer DIR')],
)
def test_files_that_cannot_be_read_say_so(tmp_path: Path, pre: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        written(tmp_path / "m.gguf", ["a", "b"], [1, 1], pre=pre)


def test_gemma4(tmp_path: Path) -> None:
    """Characters with SentencePiece's spaces, and merges in the file."""
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.pre_tokenizer = pre_tokenizers.Sequence(split("[^\n]+|[\n]+"))
    raw.train_from_iterator(TRAINING * 2, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    named = ["<pad>", "<eos>", "<bos>", "<unk>"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*named, *single, *in_order(raw)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges_of(raw)]
    right = Tokenizer(
        models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    right.normalizer = normalizers.Replace(" ", "\u2581")
    right.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    right.add_special_tokens(named)
    own = written(
        tmp_path / "m.gguf",
        tokens,
        [3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)],
        model="gemma4",
        merges=merges_of(raw),
        ids={"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3},
    )
    for text in texts(2):
        wanted = right.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_special_tokens=False) == wanted, repr(text)
        assert own.encode(text) == [2, *wanted]
        assert own.decode(wanted) == right.decode(wanted)


@pytest.mark.parametrize("lowers", [True, False])
def test_bert(tmp_path: Path, lowers: bool) -> None:
    named = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    right = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    right.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=lowers)
    right.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    right.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=[*named, "[unused0]"], show_progress=False
    )
    right.train_from_iterator(TRAINING * 3, trainer)
    right.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokens = in_order(right)
    as_stored = [
        t if i <= len(named) else t[2:] if t.startswith("##") else f"\u2581{t}"
        for i, t in enumerate(tokens)
    ]
    kinds = [3] * len(named) + [1] * (len(tokens) - len(named))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(as_stored)
    writer.add_token_types(kinds)
    for name, number in (("unknown", 1), ("bos", 2), ("seperator", 3), ("padding", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    if not lowers:
        writer.add_bool("tokenizer.ggml.normalizer.lowercase", False)
        writer.add_bool("tokenizer.ggml.normalizer.strip_accents", False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    own = GgufTokenizer(GgufTokenizer.Options(), str(tmp_path / "m.gguf"))
    right.add_special_tokens([AddedToken(name, special=True) for name in named])
    for text in [*texts(3), "a [MASK] of dogs", "un" * 80]:
        wanted = right.encode(text).ids
        assert own.encode(text) == wanted, repr(text)
        assert own.decode(wanted) == right.decode(wanted)
