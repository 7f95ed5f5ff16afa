"""Small functions that plugin files import from vLLM, written anew from what they are for."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Sequence
from typing import Any

ENVIRONMENT_DEFAULTS = {"VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": 1}


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger that can also say a thing once."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(f"dovetail.plugin_files.{name}"), {})
        self._said: set[tuple[int, str]] = set()

    def _once(self, level: int, message: str, args: tuple[Any, ...]) -> None:
        if (level, message) not in self._said:
            self._said.add((level, message))
            self.log(level, message, *args)

    def debug_once(self, message: str, *args: Any, **options: Any) -> None:
        """Log a message of this text once."""
        self._once(logging.DEBUG, message, args)

    def info_once(self, message: str, *args: Any, **options: Any) -> None:
        """Log a message of this text once."""
        self._once(logging.INFO, message, args)

    def warning_once(self, message: str, *args: Any, **options: Any) -> None:
        """Log a message of this text once."""
        self._once(logging.WARNING, message, args)


def init_logger(name: str) -> _Logger:
    """Return a logger below dovetail's, so that its levels and handlers hold for plugin files."""
    return _Logger(name)


def random_uuid() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def make_tool_call_id(
    id_type: str = "random", func_name: str | None = None, idx: int | None = None
) -> str:
    """Return the id of a call: a random one, or Kimi K2's, which says name and number."""
    if id_type == "kimi_k2":
        return f"functions.{func_name}:{idx}"
    return f"chatcmpl-tool-{random_uuid()}"


def environment(name: str) -> Any:
    """Return vllm.envs' value of a variable. Raises: AttributeError for one that is not set."""
    if name in os.environ:
        return os.environ[name]
    if name in ENVIRONMENT_DEFAULTS:
        return ENVIRONMENT_DEFAULTS[name]
    raise AttributeError(f"the variable {name} is not set")


def is_list_of(value: object, kind: Any, *, check: str = "first") -> bool:
    """Return whether a value is a list whose first item (or, by `check`, every one) is `kind`."""
    if not isinstance(value, list):
        return False
    looked_at = value[:1] if check == "first" else value
    return all(isinstance(item, kind) for item in looked_at)


def find_common_prefix(first: str, second: str) -> str:
    """Return the longest text with which both begin."""
    size = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        size += 1
    return first[:size]


def find_common_suffix(first: str, second: str) -> str:
    """Return the longest text without letters and digits with which both end."""
    size = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other or one.isalnum():
            break
        size += 1
    return first[len(first) - size :]


def extract_intermediate_diff(current: str, old: str) -> str:
    """Return the part of `current` between the beginning and the end it shares with `old`."""
    suffix = find_common_suffix(current, old)
    body = current.removesuffix(suffix)
    return body[len(find_common_prefix(body, old.removesuffix(suffix))) :]


def find_all_indices(text: str, part: str) -> list[int]:
    """Return every place where `part` begins."""
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def is_complete_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def partial_json_loads(text: str, flags: Any) -> tuple[Any, int]:
    """Return (the value that a beginning of JSON holds, how many characters it takes)."""
    import partial_json_parser

    try:
        return partial_json_parser.loads(text, flags), len(text)
    except json.JSONDecodeError as error:
        if "Extra data" not in error.msg:
            raise
        return json.JSONDecoder().raw_decode(text)


def consume_space(at: int, text: str) -> int:
    """Return the first place from `at` on where no blank stands."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def partial_tag_overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `tag`."""
    sizes = range(min(len(text), len(tag) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(tag[:size])), 0)


def extract_tool_info(tool: Any) -> tuple[str, dict[str, Any] | None]:
    """Return (name, parameters) of a tool, nested as in chat requests or flat."""
    function = getattr(tool, "function", tool)
    return function.name, function.parameters


def find_tool_properties(tools: Sequence[Any] | None, name: str) -> dict[str, Any]:
    """Return the properties of the named tool's parameters, or none."""
    for tool in tools or ():
        found, parameters = extract_tool_info(tool)
        if found == name:
            properties = (parameters or {}).get("properties")
            return properties if isinstance(properties, dict) else {}
    return {}


def is_mistral_tokenizer(tokenizer: object) -> bool:
    """Return whether a tokenizer is vLLM's own for Mistral's files: here none is."""
    return False
