"""The parts of a parsed Go template.

Source: https://pkg.go.dev/text/template, which names and explains each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ROOT_VARIABLE = "$"
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: a text, a number, true, false or nil (None)."""

    value: Any


@dataclass(frozen=True, slots=True)
class Dot:
    """The dot, and fields of it one after another: `.`, `.Function.Name`."""

    fields: Names = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, and fields of it: `$`, `$.System`, `$last`."""

    name: str
    fields: Names = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """A pipeline in parentheses, and fields of its value."""

    pipe: Pipe
    fields: Names = ()


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function at the start of a command."""

    name: str


Operand = Literal | Dot | Variable | Chain | Function


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands, each of which gets the value before it as its last argument. The last value is
    assigned to `names`, which are new variables if `declares`."""

    commands: tuple[tuple[Operand, ...], ...]
    names: Names = ()
    declares: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is written, unless it is assigned."""

    pipe: Pipe
    line: int


@dataclass(frozen=True, slots=True)
class Branch:
    """An `if`, a `with` or a `range` (`kind`)."""

    kind: str
    pipe: Pipe
    body: Nodes
    otherwise: Nodes
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """A `template` action: another template, with the value of a pipeline as its dot."""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True, slots=True)
class Jump:
    """A `break` or a `continue`."""

    kind: str


Node = Text | Action | Branch | Call | Jump
Nodes = tuple[Node, ...]
