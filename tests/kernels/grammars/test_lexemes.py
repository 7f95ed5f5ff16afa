"""What of a grammar may be a terminal of a lexer: prefix-free runs that begin like nothing else."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from dovetail_grammars.gbnf_reader import read_gbnf, regular
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.lexemes import is_prefix_free, with_lexemes
from dovetail_grammars.regex import Rule, written
from dovetail_grammars.regex_reader import parse

STRING = r'"([^"\\]|\\(["n]|u[0-9]{4}))*"'


@pytest.mark.parametrize(
    ("expression", "is_free"),
    [
        (STRING, True), (STRING + "[ ]?", False), ("[a-z]*", False), ("[a-z]*b", False),
        ("[a-z]*;", True), ("a|ab", False), ("ab|cd", True), ("a{2,4}", False), ("a{3}", True),
        ("(ab)*c", True), ("(a|b)*abb", False), ("a*", False), ("x(a|b)*x", True),
        ("(a{2,}b){2,}c", True), ("a(b?)c", True), ("a(b?)", False), ("é|è", True),
    ],
)  # fmt: skip
def test_prefix_free(expression: str, is_free: bool) -> None:
    assert is_prefix_free(parse(expression)) is is_free


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_are_judged_as_their_texts_are(seed: int) -> None:
    chance = random.Random(seed)
    pieces = ["a", "b", "[ab]", "(a|bb)", "(ab)*", "b+", "a?", "(a|ba){2}", "c", "[^c]*c"]
    for _ in range(40):
        expression = "".join(chance.choices(pieces, k=chance.randint(1, 4)))
        found = re.compile(expression)
        texts = ["".join(t) for n in range(6) for t in itertools.product("abc", repeat=n)]
        taken = [text for text in texts if found.fullmatch(text)]
        clash = any(a != b and b.startswith(a) for a in taken for b in taken)
        if clash:
            assert not is_prefix_free(parse(expression)), expression


def lexemes_of(text: str) -> set[str]:
    rules = read_gbnf(text)
    marked, lexemes = with_lexemes(rules)
    assert set(marked) == set(rules)
    assert regular(rules, Rule(ROOT)) is None, "otherwise the whole is one expression"
    return {written(node) for node in lexemes}


def test_what_is_put_together() -> None:
    text = 'root ::= s | "(" root ")"\ns ::= "\'" letter* "\'" ws\nletter ::= [^\']\nws ::= [ ]*'
    assert lexemes_of(text) == {"'[^']*'"}
    # Another part begins in the same way, so a lexer could not tell them apart.
    assert lexemes_of(text.replace("root ::=", 'root ::= "\'" root |')) == set()
    assert lexemes_of(text.replace("root ::=", "root ::= . root |")) == set()
    assert lexemes_of('root ::= "(" root ")" | [a-z]* "b"') == set()
