"""Response templates: how a checkpoint's tokenizer_config.json says its answers are written.

A template names the fields of an answer (reasoning, calls, content) and what opens and closes each.
transformers reads it; dovetail needs the fixed text that opens and closes a field, so that core
finds the regions as it does for every parser.
Source: transformers' documentation of response templates (`parse_response`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.json_values import InvalidJson, json_struct

REASONING = ("reasoning_content", "reasoning", "thinking")
"""The names that templates give to the field of the reasoning."""
CALLS = "tool_calls"
EXAMPLE: Mapping[str, Any] = {
    "start_anchor": "assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}
"""What a parser reads that no tokenizer has been given to: thinking in <think>, calls as JSON."""

_BLANKS = re.compile(r"(?:(?:\\[snrt]|[ \n])[*+?]?)+")
_GROUP = re.compile(r"\(\?:(?P<parts>[^()]*)\)")
_ESCAPED = re.compile(r"\\.")
_CHOICES_IN_GROUPS = re.compile(r"(?:\\.|[^\\|()]|\((?:\\.|[^\\()])*\))*")
"""A pattern whose choices are all in groups, none in another."""
_PART = re.compile(r"(?:\\.|[^|\\])+")
_LETTER = re.compile(r"\\n|\\(?P<escaped>\W)|(?P<plain>[^\\.^$*+?{}\[\]|()])", re.DOTALL)
_REPEATS = ("*", "?", "{")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """Options of the parsers that read by a template."""

    template: str = field(
        default="",
        metadata={"help": "a JSON file with a response template, in place of the checkpoint's own"},
    )


def template_of(options: TemplateOptions, tokenizer: Tokenizer) -> Mapping[str, Any]:
    """Return the template to read by: the option's, or the checkpoint's. Raises: ConfigError"""
    if options.template:
        return _read(Path(options.template))
    found = tokenizer.response_template()
    if found is None:
        raise ConfigError(
            "the checkpoint brings no response template.",
            where="tokenizer_config.json",
            fix="name the parser of the model's family (`dovetail plugins list tool_parser`), or "
            "give a template: --plugin-options.tool_parser.template FILE.",
        )
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found: dict[str, Any] = json_struct(path.read_bytes(), dict[str, Any])
    except OSError as error:
        raise ConfigError(f"no template can be read: {error}.", where=str(path)) from error
    except InvalidJson as error:
        raise ConfigError(f"the response template {error}", where=str(path)) from error
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What opens or closes a field: the fixed texts of which it begins with one, and the compiled
    pattern of all of it. `may_grow`: a match at the end of a text could become longer."""

    texts: tuple[str, ...]
    pattern: Any
    may_grow: bool


class TemplateField:
    """One field of a template. `opening` is None for the field of all text outside the others,
    `closing` where the field ends with the answer. `repeats`: it may occur again."""

    def __init__(self, template: Mapping[str, Any], name: str) -> None:
        """Raises: ConfigError for a template that transformers refuses, or an unknown field"""
        spec = template.get("fields", {}).get(name)
        where = f"response_template, {name}"
        if not isinstance(spec, Mapping):
            raise ConfigError("the template has no such field.", where=where)
        self.name = name
        found = _loaded(name, spec, where).fields[name]
        self.is_json, self.repeats = found.content == "json", found.repeats
        self.opening = _edge(spec, "open", found.open_re, where)
        self.closing = _edge(spec, "close", found.close_re, where)
        if self.closing is not None and not self.closing.pattern.groupindex:
            spec = {key: value for key, value in spec.items() if not key.startswith("close")}
        self._unclosed = _loaded(name, spec, where)

    def values(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the values of one region, which begins with its opening text; its closing text is
        left out, since a string may contain the same. Raises: ValueError, KeyError or TypeError
        where the text is not as the template says."""
        from transformers.utils.chat_parsing.response_parser import parse_response

        closing = self.closing
        if closing is not None and not closing.pattern.groupindex:
            ends = (one for one in closing.pattern.finditer(text) if one.end() == len(text))
            closed = next(ends, None)
            text = text if closed is None else text[: closed.start()]
        found = parse_response(text, self._unclosed, prefix="", tools=list(tools)).get(self.name)
        return found if isinstance(found, list) else [] if found is None else [found]


def _loaded(name: str, spec: Mapping[str, Any], where: str) -> Any:
    """Return transformers' template of one field. Raises: ConfigError"""
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        return load_response_template({"start_anchor": "\x00", "fields": {name: dict(spec)}})
    except ImportError as error:
        raise ConfigError(
            "the installed transformers cannot read response templates.",
            where=where,
            fix="install a newer transformers.",
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"transformers refuses the template: {error}.", where=where) from error


def ends_of_content(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fixed texts around the field `content`: they are not content themselves."""
    content = TemplateField(template, "content") if "content" in template["fields"] else None
    edges = (content.opening, content.closing) if content else ()
    return tuple(text for edge in edges if edge is not None for text in edge.texts if text)


def _edge(spec: Mapping[str, Any], key: str, pattern: Any, where: str) -> Edge | None:
    if pattern is None:
        return None
    given = spec.get(key)
    if given is not None:
        texts = (given,) if isinstance(given, str) else tuple(given)
        may_grow = any(a != b and a.startswith(b) for a in texts for b in texts)
        return Edge(texts=texts, pattern=pattern, may_grow=may_grow)
    texts = fixed_beginnings(pattern.pattern)
    if key == "open" and not texts:
        raise ConfigError(
            f"the pattern {pattern.pattern!r} does not begin with a fixed text.", where=where
        )
    return Edge(texts=texts, pattern=pattern, may_grow=True)


def fixed_beginnings(pattern: str) -> tuple[str, ...]:
    r"""Return the texts with one of which every match of a pattern begins, blanks aside: "<a>" of
    r"\s*<a>\s*<b=(.*?)>". None if a match may begin otherwise, or if the pattern is not simple."""
    blanks = _BLANKS.match(pattern)
    pattern = pattern[blanks.end() :] if blanks else pattern
    group = _GROUP.fullmatch(pattern)
    if group is not None:
        pattern = group["parts"]
    elif "|" in pattern and "(" in pattern and not _CHOICES_IN_GROUPS.fullmatch(pattern):
        return ()
    is_choice = group is not None or "(" not in _ESCAPED.sub("", pattern)
    texts = tuple(map(_beginning, _PART.findall(pattern) if is_choice else [pattern]))
    return texts if all(texts) else ()


def _beginning(pattern: str) -> str:
    """Return the text with which every match of a pattern without a choice begins."""
    letters: list[str] = []
    at = 0
    while letter := _LETTER.match(pattern, at):
        at = letter.end()
        if pattern.startswith(_REPEATS, at):
            break
        letters.append(letter["escaped"] or letter["plain"] or "\n")
    return "".join(letters).rstrip()
