"""GBNF and EBNF become rules over characters: every part of the language, and a sentence with a
line number for what is not read."""

from __future__ import annotations

import re

import pytest

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.gbnf_reader import inlined, read_gbnf
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.lark_anchors import check_anchors
from dovetail_grammars.regex import Many, written

REGULAR: list[tuple[str, str, str]] = [
    ('root ::= "a" | "bc"', "a bc", "b abc"),
    ('root ::= x "b"\nx ::= [a-z]*', "b ab bb abab", "a ba"),
    ('root ::= ("a" "b")+ # pairs\n  | [0-9]{2,3}', "ab abab 12 123", "a 1 1234"),
    ('root ::= "x"? y{2} z{1,} [^a-z]{0,1}\ny::="y"\nz ::= "z"', "xyyz yyzzA", "yz xyy yyza"),
    (r'root ::= "\x41\u0042\U00000043" [\]\-a]', "ABC] ABC- ABCa", "ABC ABC["),
    (r"root ::= [a-] . [^\]]", "ax! ---", "a bx! ax]"),
    ('root ::= first-word rest_2\nfirst-word ::= "a"\nrest_2 ::= | "b"', "a ab", "b"),
    ('root ::= (\n  "a" |\n  "b"\n)\n\n', "a b", "ab"),
]


@pytest.mark.parametrize(("text", "right", "wrong"), REGULAR, ids=[r[0][:30] for r in REGULAR])
def test_what_a_grammar_without_recursion_matches(text: str, right: str, wrong: str) -> None:
    whole = inlined(read_gbnf(text))
    assert whole is not None
    found = re.compile(written(whole))
    for one in right.split():
        assert found.fullmatch(one), one
    for one in wrong.split():
        assert not found.fullmatch(one), one


def test_a_rule_that_ends_in_itself_is_a_repetition() -> None:
    rules = read_gbnf('root ::= "a" root | [b-c] root | "" ')
    assert inlined(rules) is not None
    assert any(isinstance(part, Many) for part in rules[ROOT].parts)  # type: ignore[union-attr]
    for text in ('root ::= "(" root ")" | ""', 'root ::= root "a" | "b"'):
        assert inlined(read_gbnf(text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('start ::= "a"', 'no rule "root"'), ('root ::= x\ny ::= "a"', '"x", which is not defined'),
        ('root ::= "a"\nroot ::= "b"', r'defines "root" twice \(line 2\)'),
        ('root ::= ("a"', r"not closed \(line 1\)"), ('root ::= "a")', "where a rule must begin"),
        ('root ::= "a" (?="b")', "not understood"), ("root ::= <[12]>", "not understood"),
        ('root ::=\n "a', r"not understood \(line 2\)"), (r'root ::= "\q"', "not an escape"),
        ("root ::= [z-a]", "ends before it begins"), ("root ::= []", "empty set"),
        ('root ::= "a"{3,2}', "ends too early"), ('root ::= "a"{}', "without a number"),
        (r'root ::= "\uD800"', "not a character"), ("root ::= * ", "expected"), ("", "no rule"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "nested more than 60 deep"),
        ('root ::= "a"{900000}', "too high"), (r'root ::= "\x4"', "not a character"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InvalidConstraint, match=said):
        read_gbnf(text)


def test_ways_that_never_end_are_closed() -> None:
    rules = read_gbnf('root ::= "b" | "a" on | on* "c"\non ::= "a" on | other\nother ::= on "b"')
    whole = inlined(rules)
    assert whole is not None
    assert set(rules) == {ROOT}
    found = re.compile(written(whole))
    assert [text for text in ("b", "c", "a", "aa", "ac") if found.fullmatch(text)] == ["b", "c"]
    for text in ("root ::= root", 'root ::= "a" root', "root ::= x y\nx ::= y\ny ::= x"):
        with pytest.raises(InvalidConstraint, match="ever ends"):
            read_gbnf(text)


def test_anchors_of_lark_are_refused() -> None:
    for text in (
        "start: /^a$/", "start: X\nX: /(a|^b)/", r"start: /a\b/", r"start: /[a]\Z/i",
    ):  # fmt: skip
        with pytest.raises(InvalidConstraint, match="has the anchor"):
            check_anchors(text)
    for text in (
        r"start: /[^a]\^[$]\$/", 'start: "^a$"', "start: /a/ // ^b$\n", r'start: "/^" /a/ "$/"',
        r"start: /[\]^]/ # /^/",
    ):  # fmt: skip
        check_anchors(text)
