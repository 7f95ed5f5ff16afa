"""StructuredOutputBackend: masks and acceptance agree, and the written text meets the
constraint."""

from __future__ import annotations

import json
import random
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
    concat,
)
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.structured_output.select_backend import unsupported_parts
from dovetail_grammars.rewriting.tree import VALIDATING
from dovetail_testing.contract import requires
from dovetail_testing.random_walks import Wanderer, allowed, follows, small_vocabulary

NUM_WALKS = 12
PERSON = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 'y"', "\u00e9"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LISTS = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
AN_ANNOTATION = "noSuchKeyword"
GRAMMARS = {
    "ebnf": 'root ::= "a" [0-9]+ ("," root)?',
    "gbnf": 'root ::= "a" [0-9]+ ("," root)?',
    "lark": 'start: "a" /[0-9]+/ ("," start)?',
}


class Case(NamedTuple):
    """A constraint, the capability that it needs, and what every text of it matches."""

    word: str
    name: str
    constraint: Constraint
    regex: str = ""


BOOL = JsonSchema({"type": "boolean"})
ITEM = concat("[", Regex("[0-9]"), "]")
UNTIL = concat(FreeText(("}]",)), "}]", Regex("[0-9]"))
WORDS = tuple(map(Literal, ("yes", "yesterday", "no")))
CONSTRAINTS = [
    Case("json", "object", JsonSchema(PERSON)),
    Case("json", "list", JsonSchema(LISTS, "")),
    Case("json", "int", JsonSchema({"type": "integer", "minimum": -3, "maximum": 120}), "-?[0-9]+"),
    Case("json", "anything", JsonSchema()),
    Case("regex", "digits", Regex(r"\d{2,3}-[a-c]+ \w?"), "[0-9]{2,3}-[a-c]+ [0-9a-zA-Z_]?"),
    Case("regex", "anchored", Regex("^(ab|c)*$"), "(ab|c)*"),
    Case("regex", "letters", Regex("[\u00e9-\u00fc]{2}\u4f60."), "[\u00e9-\u00fc]{2}\u4f60."),
    Case("regex", "choice", Choice(WORDS), "yes(terday)?|no"),
    Case("concat", "parts", concat("<", Regex("[a-c]"), BOOL, ">"), "<[a-c](true|false)>"),
    Case("concat", "repeat", Repeat(ITEM, 1, 3), r"(\[[0-9]\]){1,3}"),
    Case("concat", "choice", Choice((concat("a", Regex("b*")), Literal("c"))), "ab*|c"),
    Case("concat", "optional", Concat((Literal("a"), Repeat(Literal("b"), 0, 1))), "ab?"),
    Case("free_text", "until", UNTIL, r"(?s:(?!.*}\].*}\]).*)}\][0-9]"),
    *(Case("grammar", k, Grammar(v, k), "a[0-9]+(,a[0-9]+)*") for k, v in GRAMMARS.items()),
]  # fmt: skip
WRONG: list[tuple[str, Constraint]] = [
    ("regex", Regex("(a")),
    ("regex", Regex("(?=a)b")),
    ("regex", Regex(r"(a)\1")),
    ("json", JsonSchema({"type": "integer", "minimum": 5, "maximum": 4})),
    ("json", JsonSchema({"type": "string", "pattern": "[z-a]"})),
]


@pytest.fixture(scope="class")
def vocabulary() -> Vocabulary:
    """Return the kit's vocabulary: every byte, pieces of JSON, special tokens."""
    return small_vocabulary()


@pytest.fixture(scope="class")
def wanderer(vocabulary: Vocabulary) -> Wanderer:
    """Return a source of random walks."""
    return Wanderer(vocabulary)


@pytest.fixture
def backend(plugin: Any, vocabulary: Vocabulary) -> StructuredOutputBackend:
    """Return the backend over the kit's vocabulary."""
    return backend_of(plugin, vocabulary)


_MADE: dict[Any, StructuredOutputBackend] = {}


def backend_of(plugin: Any, vocabulary: Vocabulary) -> StructuredOutputBackend:
    """Return a backend made once per class: its vocabulary takes time."""
    if plugin not in _MADE:
        _MADE[plugin] = plugin(plugin.Options(), vocabulary)
    return _MADE[plugin]


def loaded(backend: StructuredOutputBackend, word: str, constraint: Constraint) -> LoadedConstraint:
    """Return a constraint compiled and loaded; skip if the backend does not claim it."""
    if word not in backend.capabilities:
        pytest.skip(f'does not claim "{word}"')
    refused = unsupported_parts(type(backend), constraint)
    if refused:
        pytest.skip(refused[0].what)
    return backend.load(backend.compile(constraint))


def takes(
    backend: StructuredOutputBackend,
    vocabulary: Vocabulary,
    word: str,
    constraint: Constraint,
    right: list[str],
    wrong: list[str],
) -> None:
    """Check that a constraint takes the right texts whole and none of the wrong ones."""
    compiled = loaded(backend, word, constraint)
    assert [t for t in right if not follows(compiled.matcher(), vocabulary, t.encode())] == []
    assert [t for t in wrong if follows(compiled.matcher(), vocabulary, t.encode())] == []


def ends(may: np.ndarray, vocabulary: Vocabulary) -> bool:
    """Return whether the answer may end; all end tokens are alike in that."""
    bits = may[list(vocabulary.eos_ids)]
    assert bits.all() == bits.any()
    return bool(bits.all())


CASES = pytest.mark.parametrize(
    "case", CONSTRAINTS, ids=[f"{c.word}-{c.name}" for c in CONSTRAINTS]
)


class TestStructuredOutputBackend:
    """Clauses of structured-output backends."""

    kind = "structured_output_backend"

    @CASES
    def test_walks_have_the_constraint(
        self, backend: StructuredOutputBackend, wanderer: Wanderer, case: Case
    ) -> None:
        """Random walks end, and their text meets the constraint."""
        compiled = loaded(backend, case.word, case.constraint)
        num_ended = 0
        for number in range(NUM_WALKS):
            walk = wanderer.walk(compiled.matcher(), random.Random(number))
            assert walk.end in ("end", "long")
            if walk.end == "long":
                continue
            text = wanderer.written(walk.token_ids).decode()
            num_ended += 1
            if case.word == "json":
                json.loads(text)
            if case.regex:
                assert re.fullmatch(case.regex, text), text
        assert num_ended > NUM_WALKS // 2

    @CASES
    def test_mask_and_accept_agree(
        self,
        backend: StructuredOutputBackend,
        vocabulary: Vocabulary,
        wanderer: Wanderer,
        case: Case,
    ) -> None:
        """A token is accepted exactly if its bit is set; a refused one changes nothing."""
        compiled = loaded(backend, case.word, case.constraint)
        chance = random.Random(7)
        matcher = compiled.matcher()
        for _ in range(6):
            may = allowed(matcher, vocabulary)
            for token_id in range(vocabulary.size):
                if token_id in vocabulary.eos_ids:
                    continue
                is_accepted = matcher.accept(token_id)
                if is_accepted:
                    matcher.rollback(1)
                # For forced text the mask may leave only one spelling.
                is_spelling = "forced" in backend.capabilities and may.sum() == 1
                assert is_accepted is bool(may[token_id]) or (is_accepted and is_spelling)
            assert (allowed(matcher, vocabulary) == may).all()
            ids = [i for i in np.flatnonzero(may) if i not in vocabulary.eos_ids]
            if not ids:
                break
            matcher.accept(int(chance.choice(ids)))

    @CASES
    def test_end_tokens(
        self,
        backend: StructuredOutputBackend,
        vocabulary: Vocabulary,
        wanderer: Wanderer,
        case: Case,
    ) -> None:
        """The end is allowed after whole answers; complete means that nothing else is."""
        compiled = loaded(backend, case.word, case.constraint)
        for number in range(4):
            matcher = compiled.matcher()
            walk = wanderer.walk(matcher, random.Random(number))
            if walk.end != "end":
                continue
            again = compiled.matcher()
            for token_id in walk.token_ids:
                may = allowed(again, vocabulary)
                assert not again.is_complete()
                assert again.accept(vocabulary.eos_ids[0]) is ends(may, vocabulary)
                assert again.accept(token_id) is True
            may = allowed(again, vocabulary)
            assert ends(may, vocabulary)
            assert again.is_complete() is bool(may.sum() == len(vocabulary.eos_ids))

    @CASES
    def test_rollback_restores(
        self,
        backend: StructuredOutputBackend,
        vocabulary: Vocabulary,
        wanderer: Wanderer,
        case: Case,
    ) -> None:
        """After going back by any number of tokens every mask is as it was."""
        compiled = loaded(backend, case.word, case.constraint)
        chance = random.Random(3)
        ids = wanderer.walk(compiled.matcher(), chance).token_ids[:60]
        matcher = compiled.matcher()
        masks = [allowed(matcher, vocabulary)]
        for token_id in ids:
            assert matcher.accept(token_id)
            masks.append(allowed(matcher, vocabulary))
        at = len(ids)
        for _ in range(10):
            back = chance.randrange(at + 1)
            matcher.rollback(back)
            at -= back
            assert (allowed(matcher, vocabulary) == masks[at]).all()
            for token_id in ids[at : at + 4]:
                assert matcher.accept(token_id)
            at = min(len(ids), at + 4)
            assert (allowed(matcher, vocabulary) == masks[at]).all()

    @CASES
    def test_matchers_are_apart(
        self,
        backend: StructuredOutputBackend,
        vocabulary: Vocabulary,
        wanderer: Wanderer,
        case: Case,
    ) -> None:
        """One answer's tokens do not move another's place."""
        compiled = loaded(backend, case.word, case.constraint)
        fresh = allowed(compiled.matcher(), vocabulary)
        first, second = compiled.matcher(), compiled.matcher()
        wanderer.walk(first, random.Random(1))
        assert (allowed(second, vocabulary) == fresh).all()
        wanderer.walk(second, random.Random(2))
        assert (allowed(compiled.matcher(), vocabulary) == fresh).all()

    @CASES
    def test_compiling_twice_gives_the_same(
        self,
        backend: StructuredOutputBackend,
        vocabulary: Vocabulary,
        wanderer: Wanderer,
        case: Case,
    ) -> None:
        """An artifact made again, or loaded twice, allows the same tokens."""
        compiled = loaded(backend, case.word, case.constraint)
        others = [backend.load(backend.compile(case.constraint)).matcher() for _ in range(2)]
        matchers: list[Matcher] = [compiled.matcher(), *others]
        ids = wanderer.walk(compiled.matcher(), random.Random(5)).token_ids[:30]
        for token_id in ids:
            masks = [allowed(matcher, vocabulary) for matcher in matchers]
            assert all((mask == masks[0]).all() for mask in masks)
            assert all(matcher.accept(token_id) for matcher in matchers)

    def test_wrong_constraints(self, backend: StructuredOutputBackend) -> None:
        """What has no meaning or no answer is an InvalidConstraint and nothing else."""
        for word, constraint in WRONG:
            if word in backend.capabilities and not unsupported_parts(type(backend), constraint):
                with pytest.raises(InvalidConstraint):
                    backend.load(backend.compile(constraint))

    @requires("json")
    def test_refusals_have_pointers(self, plugin: Any) -> None:
        """An unsupported keyword is refused with its location, however deep; one that does not
        validate is an annotation."""
        if not {"properties", "items"} <= plugin.keywords:
            pytest.skip("does not claim lists and members")
        keyword = min(VALIDATING - plugin.keywords, default="")
        if not keyword:
            pytest.skip("claims every keyword")
        schema = {"properties": {"a/b": {"items": {AN_ANNOTATION: 1, keyword: {}}}}}
        found = unsupported_parts(plugin, concat("x", JsonSchema(schema)))
        if "concat" in plugin.capabilities:
            assert [r.pointer for r in found] == [f"/properties/a~1b/items/{keyword}"]
        assert found[0].what

    def test_every_capability_is_shown(self, plugin: Any) -> None:
        """Claims and languages go together."""
        assert bool(plugin.languages) is ("grammar" in plugin.capabilities)
        assert bool(plugin.keywords) is ("json" in plugin.capabilities)

    @requires("forced")
    def test_forced_tokens(self, backend: StructuredOutputBackend, vocabulary: Vocabulary) -> None:
        """Tokens that must follow are allowed one by one, their text is the only one, and they are
        those that the tokenizer writes."""
        compiled = loaded(backend, "json", JsonSchema(PERSON, ""))
        matcher = compiled.matcher()
        forced = list(matcher.forced())
        assert forced
        for token_id in forced:
            assert allowed(matcher, vocabulary)[token_id]
            assert matcher.accept(token_id)
        text = b"".join(vocabulary.tokens[i] for i in forced)
        assert b'{"a":'.startswith(text)
        assert vocabulary.encode(text.decode()) == forced

    @requires("special")
    def test_special_tokens(
        self, backend: StructuredOutputBackend, vocabulary: Vocabulary, wanderer: Wanderer
    ) -> None:
        """A special token is allowed where a literal has its text, and nowhere else."""
        word = "<|call|>"
        token_id = vocabulary.special[word]
        if "concat" not in backend.capabilities:
            pytest.skip('does not claim "concat"')
        compiled = backend.load(backend.compile(concat(f"a{word}", Regex("[a<|cl>]{1,9}"))))
        matcher = compiled.matcher()
        assert not allowed(matcher, vocabulary)[token_id]
        assert follows(compiled.matcher(), vocabulary, f"a{word}b".encode()) is False
        matcher.accept(vocabulary.tokens.index(b"a"))
        assert np.flatnonzero(allowed(matcher, vocabulary)).tolist() == [token_id]
        assert matcher.accept(token_id)
        assert not allowed(matcher, vocabulary)[token_id]

    def test_special_tokens_are_never_text(
        self, backend: StructuredOutputBackend, vocabulary: Vocabulary
    ) -> None:
        """If anything may be written, special tokens and ids without a token still may not."""
        if "regex" not in backend.capabilities:
            pytest.skip('does not claim "regex"')
        matcher = backend.load(backend.compile(Regex(r"[\s\S]*"))).matcher()
        may = allowed(matcher, vocabulary)
        empty = [i for i, text in enumerate(vocabulary.tokens) if not text]
        assert [i for i in empty if may[i]] == list(vocabulary.eos_ids)

    @requires("json")
    def test_blanks_are_bounded(
        self, backend: StructuredOutputBackend, vocabulary: Vocabulary
    ) -> None:
        """Between parts of JSON there are at most eight blanks."""
        compiled = loaded(backend, "json", JsonSchema(PERSON))
        for count, fits in ((0, True), (8, True), (9, False)):
            text = b'{%b"a": 1, "b": "x"}' % (b" " * count)
            assert follows(compiled.matcher(), vocabulary, text) is fits

    @requires("whitespace")
    def test_no_blanks_where_none_are_asked(
        self, backend: StructuredOutputBackend, vocabulary: Vocabulary
    ) -> None:
        """White space is written as the constraint says."""
        compact = loaded(backend, "json", JsonSchema(PERSON, ""))
        assert follows(compact.matcher(), vocabulary, b'{"a":1,"b":"x"}')
        assert not follows(compact.matcher(), vocabulary, b'{"a": 1,"b":"x"}')
        spaced = loaded(backend, "json", JsonSchema(PERSON, " ?"))
        assert follows(spaced.matcher(), vocabulary, b'{"a": 1, "b":"x" }')
        assert not follows(spaced.matcher(), vocabulary, b'{"a":  1,"b":"x"}')

    @requires("choice")
    def test_choices(self, backend: StructuredOutputBackend, vocabulary: Vocabulary) -> None:
        """One of the words is taken whole, even if another begins with it."""
        takes(backend, vocabulary, "choice", Choice(WORDS), ["yes", "yesterday"], ["yest", "noyes"])

    @requires("regex")
    def test_patterns(self, backend: StructuredOutputBackend, vocabulary: Vocabulary) -> None:
        """Classes are ASCII, a pattern matches the whole text."""
        constraint = Regex(r"\d+|a.c")
        takes(
            backend,
            vocabulary,
            "regex",
            constraint,
            ["07", "abc"],
            ["\u0663", "7a", "a\nc", "xabc"],
        )

    @requires("concat")
    def test_sequences(self, backend: StructuredOutputBackend, vocabulary: Vocabulary) -> None:
        """Repeats are counted."""
        takes(backend, vocabulary, "concat", Repeat(ITEM, 1, 2), ["[1]", "[1][2]"], ["[1][2][3]"])

    @requires("grammar")
    def test_grammars(
        self, plugin: Any, backend: StructuredOutputBackend, vocabulary: Vocabulary
    ) -> None:
        """Each of its languages is supported; without terminals, grammars are exact: no part takes
        what the next one needs."""
        for name in plugin.languages:
            constraint = Grammar(GRAMMARS[name], name)
            takes(backend, vocabulary, "grammar", constraint, ["a1", "a1,a22"], ["a", "a1,"])
            if name != "lark":
                constraint = Grammar('root ::= x "b"\nx ::= [a-z]*', name)
                takes(backend, vocabulary, "grammar", constraint, ["b", "ab", "bb"], ["", "a"])

    @requires("free_text")
    def test_free_text(self, backend: StructuredOutputBackend, vocabulary: Vocabulary) -> None:
        """Free text ends when its word has been written."""
        takes(
            backend, vocabulary, "free_text", UNTIL, ["a\nb}]1", "}]2"], ["}]}]1", "a1", "}]1}]2"]
        )
