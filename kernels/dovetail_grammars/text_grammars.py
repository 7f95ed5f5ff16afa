"""text_grammar(syntax, definition): a grammar of a text, and of the same text in a JSON string."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf import as_gbnf
from dovetail_grammars.gbnf_reader import read_gbnf
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.lark_reader import read_lark
from dovetail_grammars.regex import quoted
from dovetail_grammars.regex_reader import python_dialect, whole

SYNTAXES = ("lark", "regex")
MAX_CHARS = 1 << 15


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """A grammar in GBNF: of the text as it is, and between the quotes of a JSON string."""

    plain: str
    in_json: str


@lru_cache(maxsize=256)
def text_grammar(syntax: str, definition: str) -> TextGrammar:
    """Return a grammar in one of the SYNTAXES. Raises: InvalidConstraint"""
    if len(definition) > MAX_CHARS:
        raise InvalidConstraint(f"it is longer than {MAX_CHARS} characters")
    is_regex = syntax == "regex"
    rules = {ROOT: whole(definition, python_dialect())} if is_regex else read_lark(definition)
    escaped = {name: quoted(node, by_number=True) for name, node in rules.items()}
    found = TextGrammar(as_gbnf(rules), as_gbnf(escaped))
    try:
        read_gbnf(found.in_json)
    except InvalidConstraint as error:
        raise InvalidConstraint(f"a grammar in {syntax} is too large: {error}") from error
    return found
