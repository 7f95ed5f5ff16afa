"""The flags of `dovetail tune`, in addition to the engine's, which it leaves as they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dovetail import registry
from dovetail.config.sections.field import flag, flags_of
from dovetail.errors import ConfigError

Goal = Literal["latency", "throughput", "memory"]
GOALS: tuple[Goal, ...] = ("latency", "throughput", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """The goal, the limits, and what is tried."""

    goal: str = flag(
        "latency",
        metavar="GOAL",
        aliases=("--for",),
        help="what is to become better: latency (the time of one answer), throughput (tokens a "
        "second of several requests together) or memory (of the engine's processes)",
    )
    minutes: float = flag(
        2.0, ge=0.1, unit="minutes", help="after this time no further setting is tried"
    )
    max_loss: float = flag(
        1.0,
        ge=0,
        unit="percent",
        help="the most by which a setting may raise the perplexity over that of the model as it is "
        "stored",
    )
    text: str | None = flag(
        None,
        metavar="FILE",
        default_note="a text that the model writes itself",
        help="text similar to the model's later input: prompts are taken from it, and perplexity "
        "is measured on it",
    )
    out: str | None = flag(
        None,
        metavar="FILE",
        help="YAML file to write the settings to, for `dovetail serve --config`",
    )
    context: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        default_note="the engine's own choice; for memory the model's, at most 8192",
        help="the longest request that must fit",
    )
    prompt_tokens: int = flag(256, ge=1, unit="tokens", help="length of the measured prompts")
    answer_tokens: int = flag(64, ge=2, unit="tokens", help="length of the measured answers")
    requests: int = flag(8, ge=1, help="requests that are answered together")
    try_quantization: tuple[str, ...] = flag(
        ("int8", "int4"),
        kind="quantization",
        metavar="NAME",
        help="quantization methods to try if the checkpoint is not quantized",
    )
    try_kv_cache_dtype: tuple[str, ...] = flag(
        ("int8", "k8v4"),
        kind="kv_cache_dtype",
        metavar="NAME",
        help="types of the KV cache to try",
    )
    try_drafter: tuple[str, ...] = flag(
        ("ngram",),
        kind="drafter",
        metavar="NAME",
        help="drafters without a model to try, for latency",
    )


def check_flags(flags: TuneFlags) -> None:
    """Raise ConfigError for a goal or a plugin that does not exist."""
    if flags.goal not in GOALS:
        raise ConfigError(
            f"{flags.goal!r} is not a goal.", where="--for", fix=f"one of {', '.join(GOALS)}."
        )
    for one in flags_of(TuneFlags):
        if one.meta.kind is not None:
            for name in getattr(flags, one.name):
                registry.find(one.meta.kind, name, where=one.spelling)
