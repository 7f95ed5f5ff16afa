"""Forced text is written in the tokens that the tokenizer writes, whatever the tokenizer and the
backend."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, trainers

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.data.constraint import Choice, Constraint, JsonSchema, Literal, concat
from dovetail.interfaces.structured_output import Matcher, StructuredOutputBackend, Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.structured_output.vocabulary import vocabulary_of
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import allowed
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.mistral_layout import write_tekken

NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
MEMBERS = (
    "birthdate", "firstName", "is_active", "shipping_address", "unitPrice", "createdAt",
    "user-agent", "kilometersPerHour", "the inner name", "Größe", "naïve 世界",
)  # fmt: skip
CONSTRAINTS: tuple[Constraint, ...] = (
    JsonSchema(
        {
            "type": "object",
            "properties": {name: {"type": "boolean"} for name in MEMBERS},
            "required": list(MEMBERS),
            "additionalProperties": False,
        },
        "",
    ),
    Choice((Literal("the weather tomorrow"), Literal("the weather yesterday"))),
    concat("Answer: the ", Choice((Literal("first"), Literal("thin"))), " of the others.\n"),
)


def demo(folder: Path) -> str:
    return str(DEMO_PATH)


def byte_pairs(folder: Path) -> str:
    return str(write_tiny_checkpoint(folder / "hf", "LlamaForCausalLM"))


def pieces(folder: Path) -> str:
    """SentencePiece's way: a space before the first word, single bytes as a fallback."""
    made = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    made.normalizer = normalizers.Sequence(steps)
    known = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=known[:3], show_progress=False)
    made.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    vocab = {token: i for i, token in enumerate([*known, *_learnt(made, known)])}
    merges = _merges(made)
    made.model = models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>")
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def _learnt(made: Backend, known: list[str]) -> list[str]:
    ranked = sorted(made.get_vocab().items(), key=lambda item: item[1])
    return [token for token, _ in ranked if token not in known]


def _merges(made: Backend) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


def tekken(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    write_tekken(folder, 600)
    return str(folder)


def gguf(folder: Path) -> str:
    pytest.importorskip("gguf")
    from support.gguf_files import write_gguf

    source = write_tiny_checkpoint(folder / "hf", "LlamaForCausalLM")
    write_gguf(source, folder / "m.gguf")
    return str(folder / "m.gguf")


KINDS: tuple[Callable[[Path], str], ...] = (demo, byte_pairs, pieces, tekken, gguf)


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Vocabulary]:
    """Return a tokenizer and its vocabulary."""
    path = request.param(tmp_path / "model")
    plugin = registry.admin.load_selection(registry.choose("tokenizer", "auto", query=path))
    tokenizer: Tokenizer = plugin(plugin.Options(), path)
    facts = tokenizer.facts()
    eos = facts.eos_token_id if facts.eos_token_id is not None else 2
    return tokenizer, vocabulary_of(tokenizer, (eos,), facts.vocab_size)


def forced_runs(matcher: Matcher, vocabulary: Vocabulary) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens that were forced, with the one before them; where none are, draw."""
    chance = random.Random(0)
    taken: list[int] = []
    for _ in range(400):
        forced = list(matcher.forced())
        if forced:
            yield taken[-1:], forced
        else:
            ids = np.flatnonzero(allowed(matcher, vocabulary))
            forced = [int(chance.choice(ids))]
        if forced[0] in vocabulary.eos_ids:
            return
        for token_id in forced:
            assert matcher.accept(token_id)
        taken += forced
    raise AssertionError("the answer does not end")


def is_canonical(before: list[int], forced: list[int], vocabulary: Vocabulary) -> bool:
    """Return whether a tokenizer writes these tokens, behind the one before or afresh."""
    for head in (before, []):
        data = b"".join(vocabulary.tokens[i] for i in (*head, *forced))
        try:
            found = vocabulary.encode(data.decode())
        except UnicodeDecodeError:  # the token before is a part of a character
            continue
        if found == [*head, *forced]:
            return True
    return False


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=["object", "choice", "text"])
def test_forced_tokens_are_those_of_the_tokenizer(
    name: str, constraint: Constraint, model: tuple[Tokenizer, Vocabulary]
) -> None:
    with skipping_unavailable():
        plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
    _, vocabulary = model
    backend = plugin(plugin.Options(), vocabulary)
    matcher = backend.load(backend.compile(constraint)).matcher()
    runs = list(forced_runs(matcher, vocabulary))
    assert bool(runs) == ("forced" in plugin.capabilities)
    assert [run for run in runs if not is_canonical(*run, vocabulary)] == []


def test_a_text_is_encoded_as_the_continuation_of_another(
    model: tuple[Tokenizer, Vocabulary],
) -> None:
    _, vocabulary = model
    for text in ("the inner name", " of the others", '{"birthdate":', "1", "naïve 世界\n"):
        found = vocabulary.encode(text)
        assert found is not None
        assert b"".join(vocabulary.tokens[i] for i in found) == text.encode()


def test_text_that_would_be_another_has_no_tokens() -> None:
    plugin = registry.load("tokenizer", "hf")
    tokenizer: Tokenizer = plugin(plugin.Options(), str(DEMO_PATH))
    facts = tokenizer.facts()
    assert facts.eos_token_id is not None
    vocabulary = vocabulary_of(tokenizer, (facts.eos_token_id,), facts.vocab_size)
    end = next(iter(facts.special_texts.values()))
    assert vocabulary.encode(f'say "{end}" aloud') is None
    with skipping_unavailable():
        backend = registry.load("structured_output_backend", "guidance")
    made = backend(backend.Options(), vocabulary)
    schema = {"const": {f"the {end} name": "birthdate"}}
    matcher = made.load(made.compile(JsonSchema(schema, ""))).matcher()
    for before, forced in forced_runs(matcher, vocabulary):
        assert is_canonical(before, forced, vocabulary)
