"""The parser of Go templates. What it does not know, it refuses: nothing is left to the run.

Source: https://pkg.go.dev/text/template, "Actions", "Pipelines", "Variables", "Nested template
definitions".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dovetail_plugins.renderers.go_template.functions import FUNCTIONS
from dovetail_plugins.renderers.go_template.lexing import (
    ActionTokens,
    GoTemplateError,
    Token,
    pieces,
)
from dovetail_plugins.renderers.go_template.literals import value_of
from dovetail_plugins.renderers.go_template.nodes import (
    ROOT_VARIABLE,
    Action,
    Branch,
    Call,
    Chain,
    Dot,
    Function,
    Jump,
    Literal,
    Node,
    Nodes,
    Operand,
    Pipe,
    Text,
    Variable,
)

BRANCHES = ("if", "with", "range")
JUMPS = ("break", "continue")
KEYWORDS = frozenset({*BRANCHES, *JUMPS, "else", "end", "define", "block", "template"})
CONSTANTS = {"true": True, "false": False, "nil": None}
LITERALS = frozenset({"string", "raw", "char", "number"})
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Parsed:
    """A template's nodes, and those of the templates that it defines."""

    root: Nodes
    defined: dict[str, Nodes]


def parse(source: str) -> Parsed:
    """Return a parsed template. Raises: GoTemplateError"""
    parser = _Parser(pieces(source))
    root, _ = parser.nodes(frozenset())
    for name, line in parser.called:
        if name not in parser.defined:
            raise GoTemplateError(f'line {line}: template "{name}" is not defined')
    return Parsed(root, parser.defined)


class _Parser:
    """Parses the pieces of one template. Variables are checked where they are used."""

    def __init__(self, found: Iterable[str | ActionTokens]) -> None:
        self.defined: dict[str, Nodes] = {}
        self.called: list[tuple[str, int]] = []
        self._pieces: Iterator[str | ActionTokens] = iter(found)
        self._variables = [ROOT_VARIABLE]
        self._depth = 0
        self._num_ranges = 0

    def nodes(self, ends: frozenset[str]) -> tuple[Nodes, _Words | None]:
        """Return the nodes up to an action in `ends`, and that action. Mutates: self. Raises:
        GoTemplateError"""
        found: list[Node] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                found.append(Text(piece))
                continue
            words = _Words(piece)
            if words.keyword in ends:
                return tuple(found), words
            found += self._action(words)
        if ends:
            raise GoTemplateError("the template ends without {{ end }}")
        return tuple(found), None

    def _action(self, words: _Words) -> list[Node]:
        keyword = words.keyword
        if keyword is None:
            pipe = self._pipe(words)
            words.check_end()
            return [Action(pipe, words.line)]
        if keyword in ("else", "end"):
            raise words.fault(f"unexpected {{{{ {keyword} }}}}")
        words.take()
        if keyword in BRANCHES:
            return [self._branch(keyword, words)]
        if keyword in JUMPS:
            if not self._num_ranges:
                raise words.fault(f"{{{{ {keyword} }}}} outside of a range")
            words.check_end()
            return [Jump(keyword)]
        return self._named(keyword, words)

    def _branch(self, kind: str, words: _Words) -> Branch:
        """Return a branch with all its `else if`s. Mutates: self"""
        num_variables, line = len(self._variables), words.line
        self._enter(words)
        pipe = self._pipe(words, names_pair=kind == "range")
        words.check_end()
        self._num_ranges += kind == "range"
        num_visible = len(self._variables)
        body, end = self._until("else", "end")
        del self._variables[num_visible:]
        self._num_ranges -= kind == "range"
        otherwise = self._otherwise(kind, end) if end.keyword == "else" else ()
        self._depth -= 1
        del self._variables[num_variables:]
        return Branch(kind, pipe, body, otherwise, line)

    def _otherwise(self, kind: str, words: _Words) -> Nodes:
        """Return the nodes after an `else`; an `else if` shares its end. Mutates: self"""
        words.take()
        if words.keyword == kind and kind != "range":
            words.take()
            return (self._branch(kind, words),)
        words.check_end()
        return self._until("end")[0]

    def _until(self, *ends: str) -> tuple[Nodes, _Words]:
        """Return the nodes up to an `end` or `else`, and that. Mutates: self. Raises:
        GoTemplateError"""
        nodes, end = self.nodes(frozenset(ends))
        assert end is not None, "a template without an end is refused"
        if end.keyword == "end":
            end.take()
            end.check_end()
        return nodes, end

    def _named(self, keyword: str, words: _Words) -> list[Node]:
        """Return what `define`, `block` and `template` leave at their place. Mutates: self"""
        name = words.take()
        if name is None or name.kind not in ("string", "raw"):
            raise words.fault(f"{{{{ {keyword} }}}} needs a name in quotes")
        text = str(value_of(name))
        pipe = None if words.is_empty else self._pipe(words)
        words.check_end()
        if keyword != "define":
            self.called.append((text, words.line))
        elif pipe is not None or self._depth:
            raise words.fault("a definition stands alone, outside of all branches")
        if keyword != "template":
            self._define(text, words)
        return [] if keyword == "define" else [Call(text, pipe, words.line)]

    def _define(self, name: str, words: _Words) -> None:
        outer, self._variables = self._variables, [ROOT_VARIABLE]
        ranges, self._num_ranges = self._num_ranges, 0
        self._enter(words)
        self.defined[name], _ = self._until("end")
        self._depth -= 1
        self._variables, self._num_ranges = outer, ranges

    def _enter(self, words: _Words) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise words.fault(f"the template nests more than {MAX_DEPTH} deep")

    def _pipe(self, words: _Words, *, names_pair: bool = False) -> Pipe:
        """Return a pipeline up to a ")" or the action's end. Mutates: self"""
        names, declares = self._assigned(words, names_pair=names_pair)
        commands: list[tuple[Operand, ...]] = []
        while True:
            commands.append(self._command(words, is_piped=bool(commands)))
            if words.peek() != "pipe":
                break
            words.take()
        if declares:
            self._variables += names
        return Pipe(tuple(commands), names, declares)

    def _assigned(self, words: _Words, *, names_pair: bool) -> tuple[tuple[str, ...], bool]:
        kinds = [token.kind for token in words.ahead(4)]
        if kinds[:1] != ["variable"]:
            return (), False
        is_pair = kinds[1:3] == ["comma", "variable"] and names_pair
        size = 3 if is_pair else 1
        if kinds[size : size + 1] not in (["declare"], ["assign"]):
            return (), False
        names = tuple(token.text for token in words.ahead(size) if token.kind == "variable")
        declares = kinds[size] == "declare"
        for _ in range(size + 1):
            words.take()
        if not declares:
            self._check_known(names, words)
        return names, declares

    def _command(self, words: _Words, *, is_piped: bool) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while words.peek() not in (None, "pipe", "right"):
            operands.append(self._operand(words))
        if not operands:
            raise words.fault("a value is missing")
        first, *others = operands
        if first == Literal(None):
            raise words.fault("nil alone is not a value")
        if isinstance(first, Function):
            _check_count(first.name, len(others) + is_piped, words)
        elif others or is_piped:
            raise words.fault("only a function takes arguments")
        return (first, *(_as_value(one, words) for one in others))

    def _operand(self, words: _Words) -> Operand:
        token = words.take()
        assert token is not None
        match token.kind:
            case "dot":
                return Dot()
            case "field":
                return Dot((token.text[1:], *words.fields()))
            case "variable":
                self._check_known((token.text,), words)
                return Variable(token.text, words.fields())
            case "left":
                return self._parenthesised(words)
            case "word":
                return _word(token, words)
            case kind if kind in LITERALS:
                return Literal(value_of(token))
        raise words.fault(f"unexpected {token.text!r}")

    def _parenthesised(self, words: _Words) -> Chain:
        self._enter(words)
        pipe = self._pipe(words)
        if words.peek() != "right":
            raise words.fault("a parenthesis is not closed")
        words.take()
        self._depth -= 1
        return Chain(pipe, words.fields())

    def _check_known(self, names: Iterable[str], words: _Words) -> None:
        for name in names:
            if name not in self._variables:
                raise words.fault(f"the variable {name} is not defined")


def _word(token: Token, words: _Words) -> Operand:
    if token.text in CONSTANTS:
        return Literal(CONSTANTS[token.text])
    if token.text not in FUNCTIONS:
        raise words.fault(f'the function "{token.text}" is not known')
    return Function(token.text)


def _as_value(operand: Operand, words: _Words) -> Operand:
    """Return an argument; a function's name alone is a call of it."""
    if not isinstance(operand, Function):
        return operand
    _check_count(operand.name, 0, words)
    return Chain(Pipe(((operand,),)))


def _check_count(name: str, count: int, words: _Words) -> None:
    function = FUNCTIONS[name]
    if count < function.fewest or (function.most is not None and count > function.most):
        raise words.fault(f'the function "{name}" takes {function.counts}, not {count} arguments')


class _Words:
    """The tokens of one action, of which the first ones are taken."""

    def __init__(self, action: ActionTokens) -> None:
        self.line = action.line
        self._tokens = action.tokens
        self._at = 0

    @property
    def keyword(self) -> str | None:
        """Return the next token if it is a keyword."""
        token = self.ahead(1)
        return token[0].text if token and token[0].text in KEYWORDS else None

    @property
    def is_empty(self) -> bool:
        """Return whether all tokens are taken."""
        return self._at >= len(self._tokens)

    def ahead(self, count: int) -> tuple[Token, ...]:
        """Return the next tokens, fewer at the end."""
        return self._tokens[self._at : self._at + count]

    def peek(self) -> str | None:
        """Return the kind of the next token; None at the end."""
        return None if self.is_empty else self._tokens[self._at].kind

    def take(self) -> Token | None:
        """Return the next token; None at the end. Mutates: self"""
        token = self.ahead(1)
        self._at += 1
        return token[0] if token else None

    def fields(self) -> tuple[str, ...]:
        """Return the fields that follow without a blank. Mutates: self"""
        names = []
        while (token := self.ahead(1)) and token[0].kind == "field" and token[0].is_joined:
            names.append(token[0].text[1:])
            self._at += 1
        return tuple(names)

    def check_end(self) -> None:
        """Raise GoTemplateError if tokens are left."""
        if not self.is_empty:
            raise self.fault(f"unexpected {self._tokens[self._at].text!r}")

    def fault(self, what: str) -> GoTemplateError:
        """Return an error at this action's line."""
        return GoTemplateError(f"line {self.line}: {what}")
