"""Structural tags as constraints: text with tags that have constrained contents.

Both spellings are supported: `structures` with `triggers`, and a tree of formats (`format`), each
with a `type`. Formats by token ids are refused. Source: the structural tags of xgrammar
(https://xgrammar.mlc.ai/docs/), which `vllm serve` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    Literal,
    Regex,
    Repeat,
    choice_of,
    concat,
    optional,
    separated,
)
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.tool_parser import ToolParser

MAX_TIMES = 5000
AsJson = Callable[[Any, str], Constraint]
"""(schema, its field) -> JSON constrained by it. Raises: RequestError"""
XML_PARSER = "qwen3_coder"
"""The tool parser that defines the argument style "qwen_xml"."""
_BY_TOKEN = ("token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedText:
    """Free text with tags. `tags` are triggers and the constraint that follows each of them."""

    tags: tuple[tuple[str, Constraint], ...]
    excludes: tuple[str, ...] = ()
    at_least_one: bool = False
    stops_after_first: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether only the text after triggers is constrained."""
        return not (self.excludes or self.at_least_one or self.stops_after_first)

    def constraint(self) -> Constraint:
        """Return the whole text as one constraint."""
        triggers = tuple(trigger for trigger, _ in self.tags)
        outside = FreeText((*triggers, *self.excludes))
        at_once = choice_of(concat(trigger, rest) for trigger, rest in self.tags)
        after_text = choice_of(
            concat(_up_to(trigger, outside.without), trigger, rest) for trigger, rest in self.tags
        )
        if self.stops_after_first:
            return at_once if self.at_least_one else Choice((outside, after_text))
        more = Concat((Repeat(after_text), outside))
        return Concat((at_once, *more.parts)) if self.at_least_one else more


def read_structures(content: Mapping[str, Any], as_json: AsJson, where: str) -> TaggedText:
    """Return the tags of `structures` and `triggers`. Raises: RequestError"""
    structures, triggers = content.get("structures"), content.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise RequestError("must list structures with begin, schema and end.", where=where)
    tags = _Tags(triggers or None)
    for number, tag in enumerate(structures):
        at = f"{where}.structures[{number}]"
        begin, end = _text(tag, "begin", at), _text(tag, "end", at, may_be_empty=True)
        inner = as_json(tag.get("schema", {}), f"{at}.schema")
        tags.add(begin, concat(inner, end), at)
    return TaggedText(tags=tags.tags())


def read_format(given: Any, as_json: AsJson, where: str) -> Constraint | TaggedText:
    """Return the constraint of a format: TaggedText if the whole format is tagged text. Raises:
    RequestError"""
    reader = _Reader(as_json)
    if isinstance(given, Mapping) and given.get("type") == "triggered_tags":
        return reader.triggered(given, where)
    return reader.constraint(given, where)


@dataclass(slots=True)
class _Tags:
    """Tags grouped by the trigger that each begins with; without triggers by their `begin`."""

    triggers: Any
    found: dict[str, list[Constraint]] = field(default_factory=dict)

    def add(self, begin: str, rest: Constraint, where: str) -> None:
        """Add a tag. Raises: RequestError if it begins with no trigger. Mutates: self"""
        trigger = begin
        if self.triggers is not None:
            fits = [t for t in self.triggers if isinstance(t, str) and t and begin.startswith(t)]
            if not fits:
                raise RequestError("begins with none of the triggers.", where=f"{where}.begin")
            trigger = max(fits, key=len)
        parts = rest.parts if isinstance(rest, Concat) else (rest,)
        self.found.setdefault(trigger, []).append(concat(begin[len(trigger) :], *parts))

    def tags(self) -> tuple[tuple[str, Constraint], ...]:
        """Return the triggers, each with the constraint that follows it."""
        return tuple((trigger, choice_of(rests)) for trigger, rests in self.found.items())


class _Reader:
    """Reads formats; one method per group of types."""

    def __init__(self, as_json: AsJson) -> None:
        self._as_json = as_json

    def constraint(self, given: Any, where: str) -> Constraint:
        """Return the constraint of a format. Raises: RequestError"""
        if not isinstance(given, Mapping):
            raise RequestError("must be a format, an object with a type.", where=where)
        kind = given.get("type")
        match kind:
            case "const_string":
                return Literal(_text(given, "value", where, may_be_empty=True))
            case "json_schema":
                return self._schema(given, where)
            case "qwen_xml_parameter":
                return self._qwen_xml(given, where)
            case "regex":
                return Regex(_text(given, "pattern", where))
            case "grammar":
                text = _text(given, "grammar", where)
                return Grammar(text, "ebnf" if "::=" in text else "lark")
            case "any_text":
                return _free_text(given, where)
        return self._combined(kind, given, where)

    def _combined(self, kind: Any, given: Mapping[str, Any], where: str) -> Constraint:
        match kind:
            case "sequence":
                return _in_order(self._all(given, "elements", where))
            case "or":
                return Choice(tuple(self._all(given, "elements", where)))
            case "optional" | "plus" | "star" | "repeat":
                return self._repeat(kind, given, where)
            case "tag":
                begin, rest = self._tag(given, where)
                return _in_order([Literal(begin), rest])
            case "triggered_tags":
                return self.triggered(given, where).constraint()
            case "tags_with_separator":
                return self._separated(given, where)
            case "dispatch":
                return self._dispatch(given, where).constraint()
        named = f'"{str(kind)[:64]}"'
        what = "names tokens by id" if kind in _BY_TOKEN else "is not a format"
        raise RequestError(
            f"{named} {what}; formats of text are supported.",
            where=f"{where}.type",
            fix="use tag, triggered_tags, tags_with_separator, sequence, or, optional, plus, star, "
            "repeat, dispatch, const_string, json_schema, regex, grammar or any_text.",
            code="unsupported_field",
        )

    def _all(self, given: Mapping[str, Any], key: str, where: str) -> list[Constraint]:
        items = _list(given, key, where)
        return [self.constraint(item, f"{where}.{key}[{n}]") for n, item in enumerate(items)]

    def _schema(self, given: Mapping[str, Any], where: str) -> Constraint:
        style = given.get("style", "json")
        if style == "qwen_xml":
            return self._qwen_xml(given, where)
        if style != "json":
            what = f'the style "{str(style)[:64]}" is not supported.'
            fix = 'use "json" or "qwen_xml".'
            raise RequestError(what, where=f"{where}.style", fix=fix, code="unsupported_field")
        return self._as_json(given.get("json_schema", {}), f"{where}.json_schema")

    def _qwen_xml(self, given: Mapping[str, Any], where: str) -> Constraint:
        """Return a tag for each member of an object, optionally separated by line ends."""
        schema: Any = given.get("json_schema")
        self._as_json(schema, f"{where}.json_schema")
        parser: ToolParser = registry.make(registry.choose("tool_parser", XML_PARSER))
        constraint = parser.arguments_constraint(Tool(name="f", parameters=schema))
        if constraint is None:
            raise RequestError(
                "must describe an object whose members can be written as tags.",
                where=f"{where}.json_schema",
                code="unsupported_schema",
            )
        return constraint

    def _repeat(self, kind: str, given: Mapping[str, Any], where: str) -> Constraint:
        inner = self.constraint(given.get("content"), f"{where}.content")
        bounds = {"optional": (0, 1), "plus": (1, None), "star": (0, None)}
        if kind in bounds:
            return Repeat(inner, *bounds[kind])
        minimum, maximum = (_count(given, key, where) for key in ("min", "max"))
        if maximum != -1 and maximum < minimum:
            raise RequestError("must not be less than min.", where=f"{where}.max")
        return Repeat(inner, minimum, None if maximum == -1 else maximum)

    def _tag(self, given: Any, where: str) -> tuple[str, Constraint]:
        """Return (the begin of a tag, the rest of it)."""
        begin = _text(given, "begin", where)
        content = self.constraint(given.get("content"), f"{where}.content")
        end = given.get("end")
        if not isinstance(end, list):
            only = Literal(_text(given, "end", where, may_be_empty=True))
            return begin, _in_order([content, only])
        ends = [text for text in end if isinstance(text, str)]
        if not ends or len(ends) < len(end):
            raise RequestError("must be text, or a list of texts.", where=f"{where}.end")
        return begin, choice_of(_in_order([content, Literal(text)]) for text in ends)

    def triggered(self, given: Mapping[str, Any], where: str) -> TaggedText:
        """Return free text with tags after triggers. Raises: RequestError"""
        tags = _Tags(_list(given, "triggers", where))
        for number, tag in enumerate(_list(given, "tags", where)):
            at = f"{where}.tags[{number}]"
            tags.add(*self._tag(tag, at), at)
        return TaggedText(
            tags=tags.tags(),
            excludes=_excluded(given, where),
            at_least_one=given.get("at_least_one") is True,
            stops_after_first=given.get("stop_after_first") is True,
        )

    def _separated(self, given: Mapping[str, Any], where: str) -> Constraint:
        separator = _text(given, "separator", where, may_be_empty=True)
        tags = []
        for number, tag in enumerate(_list(given, "tags", where)):
            begin, rest = self._tag(tag, f"{where}.tags[{number}]")
            tags.append(concat(begin, rest))
        maximum = 1 if given.get("stop_after_first") is True else None
        constraint = separated(choice_of(tags), separator, maximum)
        return constraint if given.get("at_least_one") is True else optional(constraint)

    def _dispatch(self, given: Mapping[str, Any], where: str) -> TaggedText:
        tags = []
        for number, rule in enumerate(_list(given, "rules", where)):
            at = f"{where}.rules[{number}]"
            if not isinstance(rule, list) or len(rule) != 2 or not isinstance(rule[0], str):
                raise RequestError("must be a pattern and a format.", where=at)
            tags.append((rule[0], self.constraint(rule[1], f"{at}[1]")))
        return TaggedText(
            tags=tuple(tags),
            excludes=_excluded(given, where),
            stops_after_first=given.get("loop") is False,
        )


def _in_order(parts: Iterable[Constraint]) -> Constraint:
    """Return the parts in sequence. Free text before a literal ends where the literal begins."""
    joined: list[Constraint] = []
    for part in parts:
        for one in part.parts if isinstance(part, Concat) else (part,):
            before = joined[-1] if joined else None
            if isinstance(before, FreeText) and isinstance(one, Literal) and one.text:
                joined[-1] = _up_to(one.text, before.without)
            joined.append(one)
    return joined[0] if len(joined) == 1 else Concat(tuple(joined))


def _up_to(word: str, others: Iterable[str]) -> FreeText:
    """Return free text up to a word that contains none of the others."""
    return FreeText((word, *(other for other in others if other != word)))


def _free_text(given: Mapping[str, Any], where: str) -> Constraint:
    for key in ("max_tokens", "max_chars"):
        if given.get(key) is not None:
            fix = "leave it out, or bound the whole answer with max_tokens."
            raise RequestError(
                "is not supported.", where=f"{where}.{key}", fix=fix, code="unsupported_field"
            )
    return FreeText(_excluded(given, where))


def _excluded(given: Mapping[str, Any], where: str) -> tuple[str, ...]:
    words = given.get("excludes") or []
    if not isinstance(words, list) or not all(isinstance(w, str) and w for w in words):
        raise RequestError("must be a list of texts.", where=f"{where}.excludes")
    return tuple(words)


def _list(given: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    items = given.get(key)
    if not isinstance(items, list) or not items:
        raise RequestError("must be a list with something in it.", where=f"{where}.{key}")
    return items


def _count(given: Mapping[str, Any], key: str, where: str) -> int:
    value = given.get(key)
    minimum = -1 if key == "max" else 0
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_TIMES:
        what = f"must be a number from {minimum} to {MAX_TIMES}."
        raise RequestError(what, where=f"{where}.{key}")
    return value


def _text(given: Any, key: str, where: str, *, may_be_empty: bool = False) -> str:
    value = given.get(key) if isinstance(given, Mapping) else None
    if isinstance(value, str) and (value or may_be_empty):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("token"), str) and value["token"]:
        return str(value["token"])  # a special token, given as text
    raise RequestError("must be text.", where=f"{where}.{key}")
