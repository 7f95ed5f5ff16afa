"""read_lark(text): parses a Lark grammar into rules over characters, the same for every backend.

An ignored terminal may be before any terminal and at the end; a terminal takes all that it can.
Supports rules, terminals, groups, counts, ranges, flags i, s, m and u, `%ignore`, and
`%import` from `common`. Aliases, priorities and the signs "?" and "!" change no text. Templates,
`%declare`, `%extend`, `%override` and other imports are refused.
Source: https://lark-parser.readthedocs.io/en/latest/grammar.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf_reader import MAX_COUNT, usable, used_names
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.lark_anchors import check_anchors
from dovetail_grammars.lark_common import COMMON
from dovetail_grammars.longest_match import with_longest
from dovetail_grammars.regex import Alternatives, Cat, Chars, Many, Node, Or, Rule, literal
from dovetail_grammars.regex_reader import python_dialect, whole

START = "start"
_PREFIX = "lark-"
"""Before every name, so that no rule is another one of GBNF."""
_IGNORED = "-ignored"
"""No rule of Lark has this name."""
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f]+|\\[ \t]*\r?\n|(?://|\#)[^\n]*)
    |(?P<line>\r?\n)
    |(?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>-?[0-9]+)
    |(?P<sign>->|\.\.|[][:|()?*+~!.,{}])
    |(?P<word>%[a-z]+)""",
    re.VERBOSE | re.ASCII,
)
MAX_RULES = 1000
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPE = re.compile(r"\\(?:([nrtf\\\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_TERMINAL = re.compile(r"_?[A-Z][A-Z0-9_]*")
_NAME = re.compile(rf"{_TERMINAL.pattern}|_?[a-z][a-z0-9_]*")
_Token = tuple[str, str, int]


def read_lark(text: str) -> dict[str, Node]:
    """Return the rules of a grammar; `rules[ROOT]` is its "start". Raises: InvalidConstraint"""
    check_anchors(text)
    reader = _Reader(text)
    return with_longest(usable(reader.rules()), reader.used)


class _Reader(Alternatives):
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_joined(list(self._split())))
        self._at = 0
        self._is_terminal = False
        self._has_ignored = any(token[:2] == ("word", "%ignore") for token in self._tokens)
        self._ignored: list[Node] = []
        self._rules: dict[str, Node] = {}
        self._terminals: dict[Node, str] = {}

    def _split(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self.fault(f"has {self._text[at : at + 12]!r}, which is not understood", at)
            if found.lastgroup != "blank":
                yield str(found.lastgroup), found[0], at
            at = found.end()

    def fault(self, what: str, at: int | None = None) -> InvalidConstraint:
        line = self._text.count("\n", 0, self._peek()[2] if at is None else at) + 1
        return InvalidConstraint(f"the grammar {what} (line {line})")

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "", len(self._text))

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def take(self, sign: str) -> bool:
        is_next = self._peek()[:2] == ("sign", sign)
        self._at += is_next
        return is_next

    def _need(self, sign: str) -> None:
        _, found, at = self._peek()
        if not self.take(sign):
            raise self.fault(f'has {found[:32]!r} where "{sign}" is expected', at)

    def rules(self) -> dict[str, Node]:
        """Return all rules by name, in names that GBNF has. Raises: InvalidConstraint"""
        while self._at < len(self._tokens):
            self._statement()
            kind, found, at = self._next()
            if kind not in ("", "line"):
                raise self.fault(f"has {found[:32]!r} where a line must end", at)
        if START not in self._rules:
            raise InvalidConstraint(f'the grammar has no rule "{START}"')
        known = {*self._rules, *self._terminals.values(), _IGNORED}
        for node in (*self._rules.values(), *self._terminals, *self._ignored):
            unknown = next((used for used in used_names(node) if used not in known), None)
            if unknown is not None:
                raise InvalidConstraint(f'the grammar uses "{unknown}", which is not defined')
        ends = (Rule(START), Rule(_IGNORED)) if self._has_ignored else (Rule(START),)
        more = {name: node for node, name in self._terminals.items()}
        if self._has_ignored:
            more[_IGNORED] = Many(Or(tuple(self._ignored)), 0, None)
        named = {_PREFIX + name: _renamed(node) for name, node in {**self._rules, **more}.items()}
        return {**named, ROOT: _renamed(Cat(ends))}

    @property
    def used(self) -> list[str]:
        """Return the rules that are terminals where they are used in rules."""
        return [_PREFIX + name for name in self._terminals.values()]

    def _statement(self) -> None:
        """Read one line, and those that continue it. Mutates: self"""
        kind, found, at = self._peek()
        if kind in ("", "line"):
            return
        if kind == "word":
            self._at += 1
            self._directive(found, at)
            return
        while self.take("?") or self.take("!"):
            pass
        kind, name, at = self._next()
        if kind != "name" or not _NAME.fullmatch(name):
            raise self.fault(f"has {name[:32]!r} where a rule must begin", at)
        if self._peek()[1] == "{":
            raise self.fault("has a template, which is not supported", at)
        if self.take("."):
            self._next()  # a priority
        self._need(":")
        self._is_terminal = _TERMINAL.fullmatch(name) is not None
        self._define(name, self.alternatives(), at)

    def _define(self, name: str, node: Node, at: int) -> None:
        if name in self._rules:
            raise self.fault(f'defines "{name}" twice', at)
        if len(self._rules) >= MAX_RULES:
            raise self.fault(f"has more than {MAX_RULES} rules", at)
        self._rules[name] = node

    def _directive(self, word: str, at: int) -> None:
        if word == "%ignore":
            self._is_terminal = True
            self._ignored.append(self.alternatives())
        elif word == "%import":
            self._import()
        else:
            raise self.fault(f"has {word}, which is not supported", at)

    def _import(self) -> None:
        _, library, at = self._next()
        names: list[str] = []
        if self.take("("):
            names.append(self._next()[1])
            while self.take(","):
                names.append(self._next()[1])
            self._need(")")
        elif self.take("."):
            names.append(self._next()[1])
        unknown = [name for name in names if name not in COMMON]
        if library != "common" or not names or unknown:
            what = ".".join([library, *unknown[:1]])
            raise self.fault(f"imports {what[:64]!r}, which is not known", at)
        renamed = self._next()[1] if self.take("->") else None
        for name in names:
            self._define(renamed or name, whole(COMMON[name], python_dialect()), at)

    def sequence(self) -> Node:
        parts: list[Node] = []
        while (part := self._part()) is not None:
            parts.append(self._counted(part))
        if self.take("->"):
            self._next()  # an alias
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def _counted(self, part: Node) -> Node:
        kind, word, at = self._peek()
        if kind != "sign" or word not in (*_COUNTS, "~"):
            return part
        self._at += 1
        if word in _COUNTS:
            return Many(part, *_COUNTS[word])
        low = self._number()
        high = self._number() if self.take("..") else low
        if high < low or high > MAX_COUNT:
            raise self.fault(f"has the count {low}..{high}, too high or ending too early", at)
        return Many(part, low, high)

    def _number(self) -> int:
        kind, word, at = self._next()
        if kind != "number" or word.startswith("-"):
            raise self.fault(f"has {word[:32]!r} where a number is expected", at)
        return int(word)

    def _part(self) -> Node | None:
        """Return the next part, None at the end of a sequence."""
        kind, word, at = self._peek()
        if kind in ("name", "text", "regex"):
            self._at += 1
            return self._value(kind, word, at)
        if kind != "sign" or word not in ("(", "["):
            return None
        self._at += 1
        inner = self.alternatives()
        self._need(")" if word == "(" else "]")
        return inner if word == "(" else Many(inner, 0, 1)

    def _value(self, kind: str, word: str, at: int) -> Node:
        """Return a terminal or a rule, with what is ignored before a terminal in a rule."""
        if kind == "name" and not _TERMINAL.fullmatch(word):
            if self._is_terminal:
                raise self.fault(f'uses the rule "{word}" in a terminal', at)
            return Rule(word)
        node = Rule(word) if kind == "name" else self._terminal(kind, word, at)
        if self._is_terminal:
            return node
        name = self._terminals.setdefault(node, f"-used{len(self._terminals)}")
        return Cat((Rule(_IGNORED), Rule(name))) if self._has_ignored else Rule(name)

    def _terminal(self, kind: str, word: str, at: int) -> Node:
        if kind == "regex":
            return self._regex(word, at)
        text = self._unescaped(word.rstrip("i")[1:-1], at)
        if self.take(".."):
            kind, word, _ = self._next()
            last = self._unescaped(word[1:-1], at) if kind == "text" else ""
            if len(text) != 1 or len(last) != 1 or last < text:
                raise self.fault("has a range that is not of two characters in order", at)
            return Chars(((ord(text), ord(last)),))
        return whole(f"(?i:{re.escape(text)})") if word.endswith("i") else literal(text)

    def _regex(self, word: str, at: int) -> Node:
        body, _, flags = word[1:].rpartition("/")
        if set(flags) - set("ismu"):
            raise self.fault(f"has an expression with the flags {flags[:16]!r}", at)
        letters = "".join(sorted({*flags} & {*"is"}))
        try:
            return whole(f"(?{letters}:{body})" if letters else body, python_dialect())
        except InvalidConstraint as error:
            raise self.fault(f"has a fault: {error}", at) from error

    def _unescaped(self, body: str, at: int) -> str:
        """Return the text between quotes. Other escapes than these are two characters."""

        def letter(found: re.Match[str]) -> str:
            digits = found[2] or found[3] or found[4]
            if digits is None:
                return _LETTERS.get(found[1], found[1])
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self.fault(f"has {found[0]!r}, which is not a character", at)
            return chr(code)

        return _ESCAPE.sub(letter, body)


def _joined(tokens: list[_Token]) -> Iterator[_Token]:
    """Yield the tokens without the line ends that end no statement: within brackets, and before an
    alternative."""
    depth = 0
    words = [word if kind == "sign" else kind for kind, word, _ in tokens]
    for number, token in enumerate(tokens):
        depth += (words[number] in ("(", "[")) - (words[number] in (")", "]"))
        if words[number] == "line":
            following = next((word for word in words[number:] if word != "line"), "")
            if depth > 0 or following == "|":
                continue
        yield token


def _renamed(node: Node) -> Node:
    match node:
        case Rule(name):
            return Rule(_PREFIX + name)
        case Cat(parts):
            return Cat(tuple(map(_renamed, parts)))
        case Or(parts):
            return Or(tuple(map(_renamed, parts)))
        case Many(part, minimum, maximum):
            return Many(_renamed(part), minimum, maximum)
    return node
