"""A parsed Go template, run over a value, within the limits of `_budget`.

Source: https://pkg.go.dev/text/template, "Actions" and "Variables".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail_plugins.renderers import _budget as budget
from dovetail_plugins.renderers.go_template.functions import FUNCTIONS, LAZY
from dovetail_plugins.renderers.go_template.lexing import GoTemplateError
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
from dovetail_plugins.renderers.go_template.values import field_of, is_true, kind_of, written

MAX_CALLS = 50
"""How deep templates may call each other."""


class _Jumped(Exception):
    """A break or continue on its way to its range."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def run(nodes: Nodes, defined: Mapping[str, Nodes], dot: Any) -> str:
    """Return what a template writes. Raises: GoTemplateError, TemplateLimit"""
    running = _Run(defined)
    try:
        running.call(nodes, dot)
    except GoTemplateError as error:
        raise GoTemplateError(f"line {running.line}: {error}") from None
    return "".join(running.out)


class _Run:
    """One rendering: its text so far, and the variables of the innermost template."""

    def __init__(self, defined: Mapping[str, Nodes]) -> None:
        self.out: list[str] = []
        self.line = 1
        self._size = 0
        self._defined = defined
        self._num_calls = 0
        self._variables: list[tuple[str, Any]] = []

    def call(self, nodes: Nodes, dot: Any) -> None:
        """Run a template with variables of its own. Mutates: self"""
        self._num_calls += 1
        if self._num_calls > MAX_CALLS:
            raise budget.TemplateLimit(
                f"the chat template's definitions call each other more than {MAX_CALLS} deep."
            )
        outer, self._variables = self._variables, [(ROOT_VARIABLE, dot)]
        self._nodes(nodes, dot)
        self._variables = outer
        self._num_calls -= 1

    def _nodes(self, nodes: Nodes, dot: Any) -> None:
        for node in nodes:
            budget.tick()
            self._node(node, dot)

    def _node(self, node: Node, dot: Any) -> None:
        match node:
            case Text(text):
                self._write(text)
            case Action(pipe, line):
                self.line = line
                value = self._pipe(pipe, dot)
                if not pipe.names:
                    self._write(written(value))
            case Branch():
                self.line = node.line
                self._branch(node, dot)
            case Call(name, pipe, line):
                self.line = line
                self.call(self._defined[name], None if pipe is None else self._pipe(pipe, dot))
            case Jump(kind):
                raise _Jumped(kind)

    def _write(self, text: str) -> None:
        self._size += len(text)
        budget.check_size(len(text))
        if self._size > budget.MAX_CHARS:
            budget.check_size(self._size)
        self.out.append(text)

    def _branch(self, node: Branch, dot: Any) -> None:
        num_variables = len(self._variables)
        value = self._pipe(node.pipe, dot)
        if node.kind == "range":
            self._range(node, value, dot)
        elif is_true(value):
            self._nodes(node.body, value if node.kind == "with" else dot)
        else:
            self._nodes(node.otherwise, dot)
        del self._variables[num_variables:]

    def _range(self, node: Branch, value: Any, dot: Any) -> None:
        num_variables, is_empty = len(self._variables), True
        if type(value) is int and len(node.pipe.names) > 1:
            raise GoTemplateError("a range over a number has one variable")
        for key, item in _items(value):
            budget.tick()
            is_empty = False
            self._set_loop(node.pipe.names, key, item)
            try:
                self._nodes(node.body, item)
            except _Jumped as jump:
                if jump.kind == "break":
                    break
            finally:
                del self._variables[num_variables:]
        if is_empty:
            self._nodes(node.otherwise, dot)

    def _set_loop(self, names: Sequence[str], key: Any, item: Any) -> None:
        for name, value in zip(names, (item,) if len(names) == 1 else (key, item), strict=False):
            self._assign(name, value)

    def _assign(self, name: str, value: Any) -> None:
        """Set the innermost variable of a name. Mutates: self"""
        self._variables[self._place(name)] = (name, value)

    def _place(self, name: str) -> int:
        for at in range(len(self._variables) - 1, -1, -1):
            if self._variables[at][0] == name:
                return at
        raise GoTemplateError(f"the variable {name} has no value yet")

    def _pipe(self, pipe: Pipe, dot: Any) -> Any:
        value: Any = None
        for i, command in enumerate(pipe.commands):
            value = self._command(command, dot, (value,) if i else ())
        if pipe.declares:
            self._variables += [(name, value) for name in pipe.names]
        elif pipe.names:
            self._assign(pipe.names[0], value)
        return value

    def _command(self, command: tuple[Operand, ...], dot: Any, last: tuple[Any, ...]) -> Any:
        first, *others = command
        if not isinstance(first, Function):
            return self._operand(first, dot)
        budget.tick()
        if first.name in LAZY:
            return self._decided(first.name, others, dot, last)
        values = [*(self._operand(one, dot) for one in others), *last]
        result = FUNCTIONS[first.name].run(*values)
        if isinstance(result, str):
            budget.check_size(len(result))
        return result

    def _decided(self, name: str, operands: list[Operand], dot: Any, last: tuple[Any, ...]) -> Any:
        """Return the value of `and` or `or`: the first that decides, else the last."""
        value: Any = None
        for operand in operands:
            value = self._operand(operand, dot)
            if is_true(value) == (name == "or"):
                return value
        return last[0] if last else value

    def _operand(self, operand: Operand, dot: Any) -> Any:
        match operand:
            case Literal(value):
                return value
            case Dot(fields):
                value = dot
            case Variable(name, fields):
                value = self._variables[self._place(name)][1]
            case Chain(pipe, fields):
                value = self._pipe(pipe, dot)
            case Function(name):
                return FUNCTIONS[name].run()
        for name in fields:
            value = field_of(value, name)
        return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a range goes over, with indices or sorted names. Raises: GoTemplateError"""
    if isinstance(value, Mapping):
        yield from ((key, value[key]) for key in sorted(value))
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif type(value) is int:
        yield from ((i, i) for i in range(value))
    elif value is not None:
        raise GoTemplateError(f"range cannot go over {kind_of(value)}")
