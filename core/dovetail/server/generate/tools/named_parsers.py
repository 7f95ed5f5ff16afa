"""Parsers named in requests: only registered ones, each created once.

Paths to files and objects in modules work in flags only; here they count as unknown names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dovetail import registry
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.tokenizer import Tokenizer

NOTHING = "none"
"""The name for no parser."""


def named_parser(kind: str, name: str, tokenizer: Tokenizer) -> Any:
    """Return a registered parser, or None for "none". Raises: RequestError"""
    if name == NOTHING:
        return None
    known = registry.names(kind)
    if name not in known:
        raise RequestError(
            f'there is no {kind} "{name[:64]}".',
            where=kind,
            fix=f"use one of: {', '.join(sorted(known))}, {NOTHING}.",
        )
    return _parser_of(kind, name, tokenizer)


@lru_cache(maxsize=256)
def _parser_of(kind: str, name: str, tokenizer: Tokenizer) -> Any:
    try:
        selection = registry.choose(kind, name, options={})
        return registry.make(selection).bound(tokenizer)
    except ConfigError as error:
        raise RequestError(error.what, where=kind, fix=error.fix) from error
