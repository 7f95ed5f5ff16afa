"""Rules of characters written as GBNF, the grammar language of llama.cpp. Knows no schema."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.guided.regex import Cat, Chars, Many, Node, Or, Rule
from dovetail.interfaces.guided import InvalidForm


def as_gbnf(rules: Mapping[str, Node]) -> str:
    """Return the text of a grammar, one rule a line. Raises: InvalidForm"""
    return "\n".join(f"{name} ::= {_text(node)}" for name, node in rules.items())


def _text(node: Node) -> str:
    match node:
        case Chars(ranges):
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return f'"{_character(ranges[0][0])}"'
            body = "".join(
                _character(a) + ("" if a == b else "-" + _character(b)) for a, b in ranges
            )
            return f"[{body}]"
        case Rule(name):
            return name
        case Cat(parts):
            return " ".join(_joined(_flat(parts))) or '""'
        case Or(()):
            raise InvalidForm("a part matches nothing")
        case Or(parts):
            return "(" + " | ".join(map(_text, parts)) + ")"
        case Many(part, least, most):
            return f"({_text(part)}){_count(least, most)}"
    raise InvalidForm("a grammar has no anchors")


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    return f"{{{least},{'' if most is None else most}}}"


def _flat(parts: tuple[Node, ...]) -> list[Node]:
    return [p for part in parts for p in (_flat(part.parts) if isinstance(part, Cat) else (part,))]


def _joined(parts: list[Node]) -> list[str]:
    """Return the texts of parts; characters one after the other become one text."""
    made: list[str] = []
    for part in parts:
        text = _text(part)
        if text.startswith('"') and made and made[-1].startswith('"'):
            made[-1] = made[-1][:-1] + text[1:]
        else:
            made.append(text)
    return made


def _character(code: int) -> str:
    letter = chr(code)
    if letter.isascii() and (letter.isalnum() or letter == " "):
        return letter
    # With four or eight digits: behind \x some readers take as many as there are.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
