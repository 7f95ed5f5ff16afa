"""Allowed values of each value kind: checked when one is loaded, and by the conformance kit.

A kind that core interprets takes one of core's own values; packages may add names for them. A kind
that takes code takes "module:attribute", which is imported when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dovetail_kernels.integer_caches import BITS

_TARGET = re.compile(r"([A-Za-z_]\w*(\.\w+)*|\S.*\.py):[A-Za-z_]\w*(\.\w+)*")
_SEVERITIES = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_COMPUTED = ("float64", "float32", "float16", "bfloat16")
_CACHED = (*_COMPUTED, "float8_e4m3fn", "float8_e5m2", *BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRule:
    """The rule for a kind's values, as a description and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _one_of(*known: Any) -> ValueRule:
    def fits(value: Any) -> bool:
        return any(value is one or (type(value) is type(one) and value == one) for one in known)

    return ValueRule(words="one of " + ", ".join(map(repr, known)), fits=fits)


def _some_of(kind: type[Any], *known: str) -> ValueRule:
    def fits(value: Any) -> bool:
        return type(value) is kind and bool(set(value) <= set(known))

    return ValueRule(words=f"a {kind.__name__} of words among {', '.join(known)}", fits=fits)


def _target(what: str, also: Iterable[Any] = ()) -> ValueRule:
    others = tuple(also)

    def fits(value: Any) -> bool:
        return value in others or (isinstance(value, str) and _TARGET.fullmatch(value) is not None)

    words = f'"module:attribute" of {what}' + "".join(f", or {one!r}" for one in others)
    return ValueRule(words=words, fits=fits)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


VALUE_RULES: dict[str, ValueRule] = {
    "dtype": _one_of(None, *_COMPUTED),
    "kv_cache_dtype": _one_of(None, *_CACHED),
    "hash_algorithm": _target("a BlockHash"),
    "request_fields": _target("a table of RequestField"),
    "expert_placement": _target("an ExpertPlacement"),
    "data_parallel_backend": _target("an EngineStarter, or of RemoteEngines"),
    "config_format": _target("what reads it", also=(None,)),
    "model_impl": ValueRule(
        words='None, "dovetail", or the name of a model plugin that runs other classes',
        fits=lambda value: value is None or _is_word(value),
    ),
    "log_level": _one_of(*_SEVERITIES),
    "log_format": _target("a logging.Formatter that is made with a prefix"),
    "uvicorn_log_level": _one_of("trace", *(word.lower() for word in _SEVERITIES)),
    "generation_config_source": ValueRule(
        words='None, "model", or a folder', fits=lambda value: value is None or _is_word(value)
    ),
    "chat_content_format": _one_of(None, "string", "openai"),
    "reasoning_field": _some_of(tuple, "reasoning", "reasoning_content"),
    "block_size": ValueRule(words="a whole number from 1", fits=_is_size),
    "compilation_level": _some_of(frozenset, "fused", "captured", "compiled"),
    "logprobs_mode": _one_of(
        *((stage, scale) for stage in ("raw", "processed") for scale in ("logprobs", "logits"))
    ),
    "rope_type": _target("a function of RopeSettings"),
    "runner": _one_of(None, "generate", "pooling"),
    "convert": _one_of(None, "embed", "classify", "reward"),
    "safetensors_load_strategy": ValueRule(words="a word", fits=_is_word),
    "trace_module": _some_of(tuple, "model", "worker"),
    "preemption_mode": _one_of("recompute", "swap"),
}
"""Kind -> rule. Values of kinds that are not listed here are passed on unchecked."""


def value_fault(kind: str, value: Any) -> str | None:
    """Return what is wrong with a value of the kind, or None."""
    rule = VALUE_RULES.get(kind)
    if rule is None or rule.fits(value):
        return None
    return f"its value is {value!r}, and a {kind} is {rule.words}"
