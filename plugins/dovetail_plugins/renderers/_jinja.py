"""ChatTemplate: one compiled template, what it reads, and a bounded way to run it.

An exception in a template is an error of the request, never of the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.renderer import Reads
from dovetail_plugins.renderers import _budget as budget
from dovetail_plugins.renderers._sandbox import TemplateSandbox

_OF_FUNCTIONS = re.compile(r"""role\W{1,6}(==|in)\W[^%}]*["']function["']""")
"""A template that supports the older role of tool results."""
_THINKING = re.compile(r"\bthinking\b")
"""A template that reads reasoning under this name (gpt-oss, LFM2.5, Command A Reasoning)."""


class Mentions:
    """The names that a template's source mentions; those in `patterns` only where these match."""

    def __init__(self, source: str, patterns: Mapping[str, re.Pattern[str]] | None = None) -> None:
        self._source = source
        self._patterns = dict(patterns or {})

    def __contains__(self, name: object) -> bool:
        pattern = self._patterns.get(str(name))
        return str(name) in self._source if pattern is None else bool(pattern.search(self._source))


class ChatTemplate:
    """A compiled template; immutable, shared by all requests and threads."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        where: str | None = None,
    ) -> None:
        self.source = source
        self._special = dict(special_tokens or {})
        with budget.limited():
            self._template, self.reads = _compile(source, where or "--chat-template")

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt. Raises: RequestError if the template fails or is too costly"""
        context = {**self._special, **variables}
        with budget.limited(), budget.as_request_error():
            return self._template.render(context)


@lru_cache(maxsize=4)
def _compile(source: str, where: str) -> tuple[jinja2.Template, Reads]:
    sandbox = TemplateSandbox()
    try:
        tree = sandbox.parse(source)
        reads = Reads(
            content=content_format(tree),
            takes_text=takes_text(tree),
            roles=Mentions(source, {"function": _OF_FUNCTIONS}),
            fields=Mentions(source, {"thinking": _THINKING}),
            variables=frozenset(meta.find_undeclared_variables(tree)),
            writes=Mentions(source),
            looks_for=looked_for(tree),
        )
        return sandbox.compile_bounded(tree), reads
    except (jinja2.TemplateError, RecursionError, RequestError) as error:
        raise ConfigError(
            f"the chat template cannot be compiled: {_reason(error)}",
            where=where,
            fix="mend it, or give another with --chat-template FILE.",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return f"{type(error).__name__}: {error}"


def looked_for(tree: nodes.Template) -> frozenset[str]:
    """Return the texts that a template may search for: all that it does not simply write."""
    holders = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Assign)
    return frozenset(
        const.value
        for holder in tree.find_all(holders)
        for const in holder.find_all(nodes.Const)
        if isinstance(const.value, str)
    )


def content_format(tree: nodes.Template) -> str:
    """Return "openai" if the template loops over a message's content parts, else "string"."""
    names = _content_names(tree)
    loops = (loop.iter for loop in tree.find_all(nodes.For))
    return "openai" if any(_is_content(it, names) for it in loops) else "string"


def takes_text(tree: nodes.Template) -> bool:
    """Return whether the template tests if a content is text, so that text need not be a part."""
    names = _content_names(tree)
    tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return any(_is_content(test.node, names) for test in tests)


_FILTERS_OF_PARTS = frozenset({"list", "rejectattr", "reverse", "selectattr"})


def _content_names(tree: nodes.Template) -> set[str]:
    """Return the variables that contain a message's content."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if _is_content(assign.node, names) and isinstance(assign.target, nodes.Name):
            names.add(assign.target.name)
    return names


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    match node:
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name(name=name):
            return name in names
        case nodes.Filter(node=inner, name=name) if name in _FILTERS_OF_PARTS:
            return _is_content(inner, names)
        case _:
            return False
