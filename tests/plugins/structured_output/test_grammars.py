"""Grammars mean the same under every backend that reads them, and long answers go on."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.rules.selections import select
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Concat,
    Constraint,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.structured_output.cache import ConstraintCache, compile_in_process
from dovetail.structured_output.select_backend import first_backend
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import follows, small_vocabulary

NAMES = ("guidance", "lm-format-enforcer", "xgrammar")


def balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += {"a": 1, "b": -1}.get(letter, -99)
        if depth < 0:
            return False
    return depth == 0


QUOTED = {
    "b" * depth + f"a{''.join(t)}a" + "b" * depth
    for depth in range(3)
    for n in range(3)
    for t in itertools.product("bc", repeat=n)
}
LANGUAGES: list[tuple[str, Any]] = [
    ('root ::= x "b"\nx ::= [a-z]*', lambda t: t.endswith("b")),
    ('root ::= ("a" | "ab") ("c" | "bc")', lambda t: t in ("ac", "abc", "abbc")),
    ('root ::= "a"+ "ab"?', lambda t: set(t) == {"a"} or (t[:-1] != "" and t in ("aab", "aaab"))),
    ('root ::= [a-b]* "ab" [a-b]*', lambda t: "ab" in t and "c" not in t),
    ('root ::= "a" root "b" | ""', lambda t: t == "a" * (len(t) // 2) + "b" * (len(t) // 2)),
    ('root ::= ("a" root "b")*', balanced),
    ('root ::= "c" | "a" root [a-b]* "b"', None),
    ('root ::= root "a" | "b"', lambda t: t == "b" + "a" * (len(t) - 1)),
    ('root ::= q | "b" root "b"\nq ::= "a" [^a]* "a"', lambda t: t in QUOTED),
    ('root ::= "a" root | "b"', lambda t: t == "a" * (len(t) - 1) + "b"),
]
TEXTS = ["".join(t) for size in range(5) for t in itertools.product("abc", repeat=size)]


def built(name: str, vocabulary: Vocabulary) -> StructuredOutputBackend:
    with skipping_unavailable():
        plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
    return plugin(plugin.Options(), vocabulary)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


def read_by_hand(text: str) -> bool:
    """The seventh language: c, or a, one of it, letters and b."""
    if text == "c":
        return True
    if len(text) < 3 or text[0] != "a" or text[-1] != "b":
        return False
    inner = text[1:-1]
    ends = range(1, len(inner) + 1)
    return any(read_by_hand(inner[:n]) and "c" not in inner[n:] for n in ends)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("text", "has"), LANGUAGES, ids=[g for g, _ in LANGUAGES])
@pytest.mark.parametrize("lead", ["", ">"])
def test_every_backend_reads_the_same_language(
    name: str, text: str, has: Any, lead: str, vocabulary: Vocabulary
) -> None:
    backend = built(name, vocabulary)
    grammar: Constraint = Grammar(text)
    if lead:
        grammar = Concat((Literal(lead), grammar))
    try:
        loaded = backend.load(backend.compile(grammar))
    except InvalidConstraint:
        assert name == "lm-format-enforcer", "it reads no left recursion"
        return
    has = has or read_by_hand
    taken = []
    for one in TEXTS:
        try:
            taken.append(follows(loaded.matcher(), vocabulary, (lead + one).encode()))
        except InvalidConstraint:
            assert (name, text) == ("lm-format-enforcer", 'root ::= root "a" | "b"')
            return
    assert taken == [bool(has(one)) for one in TEXTS]


def random_grammar(chance: random.Random) -> str:
    """Return a grammar over a, b and c with rules that use each other."""
    names = ["root", "x", "y", "z"]

    def part(depth: int) -> str:
        kind = chance.random()
        if depth > 2 or kind < 0.45:
            return chance.choice(['"a"', '"b"', '"c"', '"ab"', '"ca"', "[a-b]", "[^c]", "[b-c]"])
        if kind < 0.6:
            return chance.choice(names[1:])
        if kind < 0.8:
            return f"({part(depth + 1)}){chance.choice(['*', '+', '?', '{1,2}', '{2,}'])}"
        if kind < 0.9:
            return f'"{(end := chance.choice("abc"))}" [^{end}]* "{end}"'
        return f"({part(depth + 1)} | {part(depth + 1)})"

    def body() -> str:
        return " ".join(part(0) for _ in range(chance.randint(1, 3)))

    rules = [f"{name} ::= {body()} | {body()}" for name in names]
    return "\n".join(rules)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(40))
def test_random_grammars_mean_the_same_under_two_backends(
    seed: int, vocabulary: Vocabulary
) -> None:
    """Two libraries of different kinds, one with a lexer and one without."""
    chance = random.Random(seed)
    backends = [built(name, vocabulary) for name in ("guidance", "xgrammar")]
    text = random_grammar(chance)
    taken = []
    for backend in backends:
        try:
            loaded = backend.load(backend.compile(Grammar(text)))
        except InvalidConstraint as error:
            assert "ever ends" in str(error), text
            return
        taken.append([t for t in TEXTS if follows(loaded.matcher(), vocabulary, t.encode())])
    assert taken[0] == taken[1], text


LONG = {
    'root ::= item (", " item)*\nitem ::= [a-z]+': ", ".join(["word"] * 300),
    'root ::= "a" root | [b-c] root | ""': "abc" * 600,
    'root ::= root [a-z ] | ""': "so it goes on " * 100,
    'root ::= "(" root ")" | ""': "(" * 150 + ")" * 150,
    'root ::= e\ne ::= t ("+" t)*\nt ::= [0-9]+ | "(" e ")"': "(1+22)+((3))" + "+4" * 300,
}


@pytest.mark.parametrize("name", ["guidance", "xgrammar"])
@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_long_answer_does_not_die_on_its_way(
    name: str, text: str, is_nested: bool, vocabulary: Vocabulary
) -> None:
    backend = built(name, vocabulary)
    grammar: Constraint = Grammar(text)
    if is_nested:
        grammar = Concat((Regex("[ ]{0,3}"), grammar, Literal(";")))
    matcher = backend.load(backend.compile(grammar)).matcher()
    single = {t[0]: i for i, t in enumerate(vocabulary.tokens) if len(t) == 1}
    for byte in (LONG[text] + ";" * is_nested).encode():
        mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
        matcher.fill(mask)
        assert matcher.accept(single[byte])
    mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
    matcher.fill(mask)
    assert mask[vocabulary.eos_ids[0] // 32] >> vocabulary.eos_ids[0] % 32 & 1


def cache_of(*names: str, backend: str = "auto") -> ConstraintCache:
    """Return a cache over the demo model's vocabulary."""
    for name in names:
        with skipping_unavailable():
            registry.load("structured_output_backend", name)
    return ConstraintCache(
        StructuredOutputSpec(
            tokenizer=select("tokenizer", "hf"),
            tokenizer_path=str(DEMO_PATH),
            eos_ids=(2041,),
            vocab_size=2048,
            backends=tuple(select("structured_output_backend", name) for name in names),
            backend=backend,
        )
    )


def test_in_process_what_one_backend_cannot_compile_goes_to_the_next() -> None:
    cache = cache_of("lm-format-enforcer", "xgrammar", backend="lm-format-enforcer")
    assert first_backend(cache.spec) == "lm-format-enforcer"
    recursive = Grammar('root ::= root "a" | "b"')
    assert compile_in_process(cache, recursive).backend == "xgrammar"
    assert compile_in_process(cache, Grammar('root ::= "a"')).backend == "lm-format-enforcer"
    with pytest.raises(RequestError, match="too ambiguous"):
        compile_in_process(cache, recursive, backend="lm-format-enforcer")


def test_in_process_a_constraint_without_an_answer_is_refused_at_once() -> None:
    cache = cache_of("guidance", "xgrammar")
    impossible = JsonSchema({"type": "string", "minLength": 3, "maxLength": 2})
    with pytest.raises(RequestError):
        compile_in_process(cache, impossible)
    for text in ("root ::= root", 'root ::= "a" root'):
        with pytest.raises(RequestError):
            compile_in_process(cache, Grammar(text))
