"""The keys of --speculative-config: for core, the draft checkpoint, acceptance, and drafter.

Older keys that choose among implementations which do not exist here are only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail.config.sections.speculative import SpeculativeConfig
from dovetail.errors import ConfigError
from dovetail.registry.options import convert

log = logging.getLogger(__name__)

FLAG = "--speculative-config"
ACCEPTANCE = "acceptance_method"
_ACCEPTANCE_OPTIONS = ("posterior_threshold", "posterior_alpha")
_SWITCHES = {
    "disable_logprobs": "logprobs are reported as without speculation, and cost nothing where no "
    "request asks for them",
    "disable_mqa_scorer": "the drafts of a request are always verified in one pass, in the "
    "request's own row",
    "enable_adaptive_verification": "how much is drafted always follows how much is accepted",
}
"""Parts that can be turned off elsewhere -> what always happens here instead."""
_OF_MODEL = "a drafter computes with the kernels of the model"
_CHOICES = {
    "attention_backend": _OF_MODEL,
    "moe_backend": _OF_MODEL,
    "rejection_sample_method": "drafts are verified one by one, and answers have the model's own "
    "distribution",
}
"""What can be chosen elsewhere -> what is always done here."""
_UNUSED = (*_SWITCHES, *_CHOICES)
_MODIFIERS = {ACCEPTANCE, *_ACCEPTANCE_OPTIONS, *_UNUSED}
"""Keys that do not enable speculation by themselves."""
_CODE = "code_revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCheckpoint:
    """Keys about a draft model's checkpoint, None if not given: its folder or name, branch or
    commit, quantization method, number of ranks, and how drafts are sampled."""

    model: str | None = None
    revision: str | None = None
    quantization: str | None = None
    draft_tensor_parallel_size: int | None = None
    draft_sample_method: str | None = None

    def given(self) -> dict[str, Any]:
        """Return the keys that have a value."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftKeys:
    """All keys, each None or empty if not given. `options` are the drafter's own."""

    method: str | None = None
    num_speculative_tokens: int | None = None
    disable_by_batch_size: int | None = None
    max_model_len: int | None = None
    checkpoint: DraftCheckpoint = DraftCheckpoint()
    acceptance_method: str | None = None
    acceptance_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def draft_keys(speculative: SpeculativeConfig) -> DraftKeys | None:
    """Return the keys; None if they do not enable speculation. Raises: ConfigError"""
    raw = speculative.speculative_config.items()
    given = {key.replace("-", "_"): value for key, value in raw if value is not None}
    return None if set(given) <= _MODIFIERS else _read(dict(given))


def tell_unused(speculative: SpeculativeConfig) -> None:
    """Log the keys that have no effect here, and why. Raises: ConfigError"""
    raw = speculative.speculative_config.items()
    given = {key.replace("-", "_"): value for key, value in raw if value is not None}
    for key, why in _SWITCHES.items():
        if key in given and convert(given[key], bool, f"{FLAG}.{key}"):
            log.info("%s.%s has no effect: %s.", FLAG, key, why)
    for key, why in _CHOICES.items():
        if key in given:
            log.info("%s.%s has no effect: %s.", FLAG, key, why)
    if set(given) <= _MODIFIERS:
        for key in sorted(set(given) - set(_UNUSED)):
            log.info("%s.%s has no effect: nothing is drafted without a method.", FLAG, key)


def _read(settings: dict[str, Any]) -> DraftKeys:
    """Return the keys. Mutates: settings"""
    if settings.pop(_CODE, None) is not None:
        raise ConfigError(
            "code that comes with a drafter's checkpoint never runs.",
            where=f"{FLAG}.{_CODE}",
            fix="leave it out.",
        )
    for key in _UNUSED:
        settings.pop(key, None)
    return DraftKeys(
        method=_text(settings, "method"),
        num_speculative_tokens=_count(settings, "num_speculative_tokens"),
        disable_by_batch_size=_count(settings, "disable_by_batch_size"),
        max_model_len=_count(settings, "max_model_len"),
        checkpoint=DraftCheckpoint(
            model=_text(settings, "model"),
            revision=_text(settings, "revision"),
            quantization=_text(settings, "quantization"),
            draft_tensor_parallel_size=_count(settings, "draft_tensor_parallel_size"),
            draft_sample_method=_text(settings, "draft_sample_method"),
        ),
        acceptance_method=_text(settings, ACCEPTANCE),
        acceptance_options={
            key: settings.pop(key) for key in _ACCEPTANCE_OPTIONS if key in settings
        },
        options=settings,
    )


def _text(settings: dict[str, Any], key: str) -> str | None:
    """Return a text and remove it from `settings`. Raises: ConfigError."""
    value = settings.pop(key, None)
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{value!r} is not a name.", where=f"{FLAG}.{key}", fix="give a text.")


def _count(settings: dict[str, Any], key: str) -> int | None:
    """Return a count of at least 1 and remove it from `settings`. Raises: ConfigError."""
    value = settings.pop(key, None)
    if value is None:
        return None
    where = f"{FLAG}.{key}"
    count: int = convert(value, int, where)
    if count < 1:
        raise ConfigError(f"{count} is out of range.", where=where, fix="give at least 1.")
    return count
