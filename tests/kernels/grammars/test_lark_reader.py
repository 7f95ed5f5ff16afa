"""Lark grammars become rules over characters, as the library itself reads them; texts in JSON
strings; and texts without the word that ends them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from functools import cache

import pytest

from dovetail_grammars.avoiding import avoiding
from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf import as_gbnf
from dovetail_grammars.gbnf_reader import inlined, read_gbnf
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.lark_common import COMMON
from dovetail_grammars.lark_reader import read_lark
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Rule, written
from dovetail_grammars.regex_reader import python_dialect, whole
from dovetail_grammars.text_grammars import text_grammar

REGULAR: list[tuple[str, str, str]] = [
    ('start: "a" | "bc"', "a,bc", "b,abc"),
    ("// words\nstart: A+ B? # or more\n  | B\n\nA: /a/\nB.2: \"b\"i\n", "a,aab,B,aB", "ab b,abb"),
    (
        '?start: x -> one\n | "y"\n!x: ["-"] DIGIT~2 "."~1..2\n%import common.DIGIT',
        "12.,-12..,y", "1.",
    ),
    ('start: "a".."c" _X\n_X: "\\x41" | "\\u0042" | "\\n"', "aA,bB,c\n", "dA,ab"),
    ('start: ("a"\n | "b")* C\nC: /[^ab\\/]/', "c,abac", "a,/"),
    (
        'start: WORD (NUM)*\n%import common.WORD\n%import common.INT -> NUM\n%ignore " "',
        "ab 1 , a1", "1",
    ),
    (
        "start: A B\n%import common (LCASE_LETTER, UCASE_LETTER)\nA: LCASE_LETTER\nB: UCASE_LETTER",
        "aB", "ab",
    ),
    ("start: /a.c/s /./ /[A-Z]/i", "a\ncxq,aacxQ", "aac\nq"),
    ('start: "\\"" "\\d" "\\\\"', '"\\d\\', '"d\\'),
]  # fmt: skip
FAULTS: list[tuple[str, str]] = [
    ('begin: "a"', 'no rule "start"'),
    ('start: "a" x', 'uses "x", which is not defined'),
    ('start: "a"\nstart: "b"', r'defines "start" twice \(line 2\)'),
    ('start: "a" "b', r"not understood \(line 1\)"),
    ('start: ("a"', r'has .* where "\)" is expected'),
    ('start: "a")', "where a line must end"),
    ("start: /(/", r"has a fault: .* \(line 1\)"),
    ("start: /^a/", "anchor"),
    ("start: /a(?<!b)/", "not supported"),
    ("start: /a/x", "flags 'x'"),
    ('start: A\nA: b\nb: "b"', 'uses the rule "b" in a terminal'),
    ('start: t{"a"}\nt{x}: x', "has .*{"),
    ("%declare A\nstart: A", "%declare, which is not supported"),
    ("%import python.NAME\nstart: NAME", "imports 'python.NAME'"),
    ("%import common.NOPE\nstart: NOPE", "imports 'common.NOPE'"),
    ('start: "a"~9000000', "too high"),
    ('start: "a"~3..2', "ending too early"),
    ('start: "b".."a"', "two characters in order"),
    ("start: x\nx: x", "no text of the grammar ever ends"),
    ('start: "\\uD800"', "not a character"),
    ("start: " + "(" * 100 + '"a"' + ")" * 100, "nested more than 60 deep"),
    ("\n".join(f'a{n}: "a"' for n in range(2000)), "more than 1000 rules"),
]


def matches(rules: Mapping[str, Node], text: str) -> bool:
    """Return whether rules that do not begin with themselves match a whole text."""

    @cache
    def ends(node: Node, at: int) -> frozenset[int]:
        match node:
            case Chars(found):
                is_in = at < len(text) and any(a <= ord(text[at]) <= b for a, b in found)
                return frozenset({at + 1} if is_in else ())
            case Rule(name):
                return ends(rules[name], at)
            case Or(parts):
                return frozenset().union(*(ends(part, at) for part in parts))
            case Cat(parts):
                places = frozenset({at})
                for part in parts:
                    places = frozenset().union(*(ends(part, place) for place in places))
                return places
            case Many(part, least, most):
                places, found = frozenset({at}), {at} if not least else set()
                for count in range(1, min(len(text) - at + least, most or 999) + 1):
                    places = frozenset().union(*(ends(part, place) for place in places))
                    found |= places if count >= least else set()
                return frozenset(found)
        raise AssertionError(node)

    return len(text) in ends(rules[ROOT], 0)


@pytest.mark.parametrize(("text", "right", "wrong"), REGULAR, ids=[r[0][:30] for r in REGULAR])
def test_what_a_grammar_matches(text: str, right: str, wrong: str) -> None:
    node = inlined(read_lark(text))
    assert node is not None
    found = re.compile(written(node))
    for one in right.split(","):
        assert found.fullmatch(one), one
    for one in wrong.split(","):
        assert not found.fullmatch(one), one


@pytest.mark.parametrize("text", [r[0] for r in REGULAR], ids=[r[0][:30] for r in REGULAR])
def test_the_library_reads_the_same(text: str) -> None:
    lark = pytest.importorskip("lark")
    node = inlined(read_lark(text))
    assert node is not None
    found, judge = re.compile(written(node)), lark.Lark(text)
    letters = sorted({*'abcABxy1.- "', *text} - {"%", "#", ":", "|", "?"})[:14]
    for size in range(4):
        for one in map("".join, itertools.product(letters, repeat=size)):
            try:
                judge.parse(one)
                is_right = True
            except lark.exceptions.LarkError:
                is_right = False
            # The library takes the longest match of a terminal, so it may miss a text.
            assert found.fullmatch(one) or not is_right, one
            assert is_right or not found.fullmatch(one), one


@pytest.mark.parametrize(("text", "said"), FAULTS, ids=[f[0][:30] for f in FAULTS])
def test_a_fault_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidConstraint, match=said):
        read_lark(text)


@pytest.mark.parametrize("name", sorted(COMMON))
def test_the_terminals_of_common(name: str) -> None:
    lark = pytest.importorskip("lark")
    judge = lark.Lark(f"start: {name}\n%import common.{name}", parser="lalr")
    found = re.compile(written(whole(COMMON[name], python_dialect())))
    texts = '1 -1 1.5 .5 1e5 -1.5E+3 a Z _a1 ab "a" "a\\"b" "a\\\\" " " #a //a /*a*/ /*a**/ --a f'
    for one in [*texts.split(), " ", "\t ", "\n", "\r", "\r\n\n", "\f", "/* *", '"a', "1e", ""]:
        try:
            judge.parse(one)
            is_right = True
        except lark.exceptions.LarkError:
            is_right = False
        assert bool(found.fullmatch(one)) == is_right, one


def test_the_sets_of_python() -> None:
    sets = python_dialect()
    for letter, found in sets.classes.items():
        one = re.compile(f"\\{letter}")
        codes = [code for a, b in found for code in (a, b, (a + b) // 2)]
        for code in codes:
            assert one.fullmatch(chr(code)), (letter, hex(code))
    assert re.fullmatch(written(whole(".", sets)), "\r") and whole(".", sets) != whole(".")


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_a_text_within_a_json_string(syntax: str) -> None:
    expression = '[\\x00-\\x1f"\\\\/é😀a]{1,3}'
    definition = (
        expression if syntax == "regex" else f"start: /{expression.replace('/', chr(92) + '/')}/"
    )
    rules = read_gbnf(text_grammar(syntax, definition).in_json)
    for text in ("\x00\x1f\x0b", '"\\/', "é😀", "\n\r\t", "\b\fa", "\x7f"):
        inside = json.dumps(text, ensure_ascii=False)[1:-1]
        assert matches(rules, inside) == ("\x7f" not in text), text
    for inside in ("\n", '"', "\\", "\\x", "\\u0061", "b"):
        assert not matches(rules, inside)


AVOIDED: list[tuple[str, tuple[str, ...]]] = [
    ("root ::= [ab]*", ("ab",)),
    ('root ::= [a-c]{1,4} "b"', ("abc", "bb")),
    ('root ::= "a" root "b" | [c]?', ("ab",)),
    ('root ::= x x "c"\nx ::= "a" | "ab" | ""', ("abc",)),
    ('root ::= ("a" [abc]* "c"?)+', ("aa", "bca")),
    ('root ::= [ab]{2,3} ("c" | "ab")* ', ("babc",)),
    ('root ::= ("a" | "b"+ | "ca"){0,3}', ("bbc", "ac")),
]


@pytest.mark.parametrize(("grammar", "words"), AVOIDED)
def test_a_grammar_without_words(grammar: str, words: tuple[str, ...]) -> None:
    rules = read_gbnf(grammar)
    found = avoiding(rules, words)
    again = read_gbnf(as_gbnf(found))
    num_avoided = 0
    for size in range(6):
        for text in map("".join, itertools.product("abc", repeat=size)):
            has_word, is_in = any(word in text for word in words), matches(rules, text)
            num_avoided += is_in and has_word
            assert matches(found, text) == matches(again, text) == (is_in and not has_word), text
    assert num_avoided


def test_a_grammar_that_is_a_word() -> None:
    with pytest.raises(InvalidConstraint, match="every text of the grammar contains"):
        avoiding(read_gbnf('root ::= "a" [x]* "ab"'), ("ab",))


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('start: "S" N ("," N)* "F" N\nN: /[A-Z]+/\n%ignore " "', "SA F B,S AB F F", "SAFB,S A F"),
        ('start: N "a"\nN: /[a-c]{1,3}/', "abca,ccca", "aa,aba"),
        ('start: N "b"?\nN: /b?/ "a"', "bab,a,ab", "bb"),
        ('start: N "b"\nN: /ab?/', "abb", "ab"),
    ],
)
def test_a_terminal_takes_all_that_it_can(grammar: str, right: str, wrong: str) -> None:
    rules = read_lark(grammar)
    lark = pytest.importorskip("lark")
    judge = lark.Lark(grammar)
    for text in right.split(","):
        assert matches(rules, text), text
    for text in wrong.split(","):
        assert not matches(rules, text), text
        with pytest.raises(lark.exceptions.LarkError):
            judge.parse(text)


def test_a_grammar_of_many_terminals_takes_no_long_time() -> None:
    terminals = [f"T{n}: /[{chr(256 + n)}{chr(512 + n)}]+/" for n in range(150)]
    rules = [f"r{n}: T{n} | r{(n + 1) % 150} r{n * 7 % 150}" for n in range(150)]
    with pytest.raises(InvalidConstraint, match="too large"):
        read_lark("\n".join([*terminals, *rules, "start: r0 r1"]))
    with pytest.raises(InvalidConstraint, match="longer than"):
        text_grammar("lark", "start: /a/ " * 5000)
