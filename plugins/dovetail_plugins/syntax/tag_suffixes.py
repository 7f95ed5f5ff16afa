"""Tags to which each checkpoint of a family adds its own suffix, such as `<think:opensource>`.

The vocabulary says which: its added tokens hold the tags as the checkpoint writes them.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from dovetail.interfaces.tokenizer import Tokenizer

T = TypeVar("T")
_TAG_END = re.compile(r"(?<=[a-z_])>")


def suffix_of(tokenizer: Tokenizer, name: str) -> str:
    """Return the suffix after the name in the vocabulary's tag of this name, "" if there is no
    suffix or no such tag."""
    tag = re.compile(rf"<{re.escape(name)}(:[^\s<>:]{{1,64}})?>")
    found = sorted(
        match[1] or "" for text in tokenizer.added_texts() if (match := tag.fullmatch(text))
    )
    return found[0] if found else ""


def suffixed(text: str, suffix: str) -> str:
    """Return a text in which this suffix follows every tag name."""
    return _TAG_END.sub(lambda _: suffix + ">", text)


def variant(plugin: type[T], **attributes: Any) -> type[T]:
    """Return a plugin's class with other attributes."""
    return type(plugin.__name__, (plugin,), attributes)
