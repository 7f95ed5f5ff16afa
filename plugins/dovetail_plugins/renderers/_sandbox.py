"""A jinja environment that a template cannot escape from, and that limits its work.

ImmutableSandboxedEnvironment forbids attribute tricks and mutation; this file adds a budget for
loops, calls, text sizes and numbers. Source of the tags and filters: transformers' chat templates.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dovetail.errors import RequestError
from dovetail.interfaces.renderer import SpelledArguments
from dovetail_plugins.renderers import _budget as budget

_BOUND_LOOP = "dovetail_loop"
_JOIN = "dovetail_join"
_COMPARED = "dovetail_compared"
_SHALLOW = frozenset(
    [
        "attr",
        "batch",
        "count",
        "d",
        "default",
        "first",
        "items",
        "last",
        "length",
        "list",
        "map",
        "random",
        "reject",
        "rejectattr",
        "reverse",
        "safe",
        "select",
        "selectattr",
        "slice",
    ]
)
"""Filters that look only at the items of a list; all others write or compare their contents."""
_DEEP_TESTS = frozenset(
    [
        "!=",
        "<",
        "<=",
        "==",
        ">",
        ">=",
        "eq",
        "equalto",
        "ge",
        "greaterthan",
        "gt",
        "in",
        "le",
        "lessthan",
        "lt",
        "ne",
    ]
)
_DROPPED_GLOBALS = ("lipsum", "cycler", "joiner")


class GenerationTag(Extension):
    """{% generation %} marks the assistant's text for training; here its body is rendered as
    usual."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body's own nodes."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounder(NodeTransformer):
    """Adds budget checks to loops and text joins before code generation."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _BOUND_LOOP, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _looked_at(node.key)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        places: list[Any] = [node, *node.ops]
        for place in places:
            if not isinstance(place.expr, nodes.Const):
                place.expr = _looked_at(place.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        first, *rest = node.nodes
        return nodes.Filter(first, _JOIN, rest, [], None, None, lineno=node.lineno)


def _looked_at(node: nodes.Expr) -> nodes.Expr:
    """Return an expression whose value, with its contents, is size-checked before it is compared or
    hashed."""
    return nodes.Filter(node, _COMPARED, [], [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of all chat templates. Rendering needs a Budget in `budget.BUDGET`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, LoopControls],
            finalize=_written,
        )
        self.filters = {
            name: _bounded(fn, is_deep=name not in _SHALLOW) for name, fn in self.filters.items()
        }
        self.tests = {
            name: _bounded_test(cast(Callable[..., Any], fn)) if name in _DEEP_TESTS else fn
            for name, fn in self.tests.items()
        }
        self.filters |= {
            "tojson": _to_json,
            "join": _joined(self.filters["join"]),
            "replace": _replaced(self.filters["replace"]),
            "indent": _indented(self.filters["indent"]),
            "format": _formatted(self.filters["format"]),
            "sum": _summed(self.filters["sum"]),
            _BOUND_LOOP: _loop,
            _COMPARED: _written,
            _JOIN: _join,
        }
        for name in _DROPPED_GLOBALS:
            self.globals.pop(name, None)
        self.globals |= {
            "range": _range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join rendered pieces, within the size limit."""
        texts: list[str] = []
        size = 0
        for part in parts:
            size += len(part)
            budget.check_size(size)
            texts.append(part)
        return "".join(texts)

    def compile_bounded(self, tree: nodes.Template) -> jinja2.Template:
        """Return the template with the budget built in. Raises: jinja2.TemplateError. Mutates:
        tree"""
        return self.from_string(_Bounder().visit(tree))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item. A key that is a list is hashed in full, so it may not be huge. Raises:
        TemplateLimit"""
        return super().getitem(obj, _written(argument))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Run an operator unless its result would be huge. Raises: TemplateLimit"""
        _check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a call unless it is unsafe or its result would be huge. Raises: TemplateLimit"""
        budget.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, list | tuple):
            budget.check_written(owner, *args)  # count and index compare
        elif isinstance(owner, dict):
            budget.check_written(*args)  # keys are hashed
        result = super().call(__context, __obj, *args, **kwargs)
        _charge(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the safe replacement of str.format, which refuses huge widths."""
        safe = super().wrap_str_format(value)
        return None if safe is None else _bounded_format(value.__self__, safe)


def _bounded_format(text: str, fn: Callable[..., str]) -> Callable[..., str]:
    """Wrap a text's str.format or str.format_map so that its result cannot be huge."""
    budget.check_format(text)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> str:
        budget.check_size(budget.formatted_size(text, "{", [*args, *kwargs.values()]))
        return fn(*args, **kwargs)

    return run


def _check_binop(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        budget.check_format(left)
        budget.check_size(budget.formatted_size(left, "%", right))
    elif operator == "+":
        _check_length(left, right)
    elif operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(times, int):
                _check_length(text, times=max(times, 0))
        _check_number(left, right)
    elif operator == "**":
        if isinstance(right, int) and abs(right) > budget.MAX_INT_BITS:
            raise budget.TemplateLimit("the chat template computes a huge number.")
        _check_number(left, right)


def _check_length(*parts: Any, times: int = 1) -> None:
    if isinstance(parts[0], str):
        budget.check_size(times * sum(len(p) for p in parts if isinstance(p, str)))
    elif isinstance(parts[0], list | tuple):
        budget.check_items(times * sum(len(p) for p in parts if isinstance(p, list | tuple)))


def _check_number(*values: Any) -> None:
    if any(isinstance(v, int) and v.bit_length() > budget.MAX_INT_BITS for v in values):
        raise budget.TemplateLimit("the chat template computes a huge number.")


def _check_text_method(owner: str, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    values = (*args, *kwargs.values())
    budget.check_pad(*values)
    if name == "join" and args and isinstance(args[0], list | tuple):
        budget.check_size(budget.joined_size(owner, list(args[0])))
    elif name == "join" and args:
        raise budget.TemplateLimit("the chat template joins something that is not a list.")
    elif name == "replace" and len(args) >= 2:
        budget.check_size(budget.replaced_size(owner, str(args[0]), str(args[1])))
    elif name == "translate":
        raise budget.TemplateLimit("the chat template uses str.translate.")
    elif name == "expandtabs":
        budget.check_size(len(owner) + owner.count("\t") * _first_int(values, 8))


def _first_int(values: Iterable[Any], default: int) -> int:
    return next((abs(v) for v in values if isinstance(v, int)), default)


def _written(value: Any) -> Any:
    """Return a value that is written or compared. Raises: TemplateLimit if it would be huge once
    written"""
    if isinstance(value, budget.CONTAINERS):
        budget.check_written(value)
    return value


def _bounded_test(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a test that compares its arguments."""

    @functools.wraps(fn)
    def run(*args: Any) -> Any:
        for value in args:
            _written(value)
        return fn(*args)

    return run


def _bounded(fn: Callable[..., Any], *, is_deep: bool) -> Callable[..., Any]:
    """Wrap a filter: it counts as a call, and its number arguments may not be huge. A deep filter
    writes or compares the contents of lists."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        budget.tick()
        budget.check_pad(*args[1:], *kwargs.values())
        for value in args if is_deep else ():
            _written(value)
        result = fn(*args, **kwargs)
        _charge(result)
        return result

    return run


def _charge(result: Any) -> None:
    """Count the result of a call or filter."""
    if isinstance(result, str):
        budget.check_size(len(result))
    elif isinstance(result, list | tuple):
        budget.check_items(len(result))


def _joined(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(eval_ctx: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        parts = list(_loop(value))
        budget.check_size(budget.joined_size(str(d), parts))
        return fn(eval_ctx, parts, d, attribute)

    return run


def _replaced(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(eval_ctx: Any, s: Any, old: str, new: str, count: int | None = None) -> Any:
        budget.check_size(budget.replaced_size(str(s), str(old), str(new)))
        return fn(eval_ctx, s, old, new, count)

    return run


def _indented(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
        size = width if isinstance(width, int) else len(width)
        budget.check_size(len(str(s)) + str(s).count("\n") * size + size)
        return fn(s, width, first, blank)

    return run


def _formatted(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(value: Any, *args: Any, **kwargs: Any) -> Any:
        budget.check_written(value)
        budget.check_format(str(value))
        budget.check_size(budget.formatted_size(str(value), "%", args or kwargs))
        return fn(value, *args, **kwargs)

    return run


def _summed(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(env: Any, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        if not isinstance(start, int | float):
            raise budget.TemplateLimit("the chat template sums something else than numbers.")
        return fn(env, _loop(iterable), attribute, start)

    return run


def _loop(values: Any) -> Iterator[Any]:
    """Yield the items of a loop, counting every iteration."""
    for value in values:
        budget.tick()
        yield value


def _join(first: Any, *rest: Any) -> str:
    budget.check_written(first, *rest)
    parts = [str(part) for part in (first, *rest)]
    budget.check_size(sum(map(len, parts)))
    return "".join(parts)


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > budget.MAX_RANGE:
        raise budget.TemplateLimit(
            f"the chat template makes a range above {budget.MAX_RANGE} numbers."
        )
    return numbers


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON like transformers' filter: no HTML escapes, non-ASCII text unchanged. Arguments
    that the model wrote are written as it did."""
    budget.check_written(value)
    is_plain = not (ensure_ascii or sort_keys) and (indent, separators) == (None, None)
    if isinstance(value, SpelledArguments) and is_plain:
        return value.text
    if indent is not None and indent > 16:
        raise budget.TemplateLimit("the chat template indents JSON by more than 16.")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise RequestError(
        f"the chat template refuses these messages: {message}",
        where="messages",
        code="chat_template_refused",
    )


def _strftime_now(pattern: str) -> str:
    budget.check_size(len(pattern) * 64)
    return datetime.datetime.now().strftime(pattern)
