"""What a model is run for: it generates, or it pools its prompts and how.

A class that is saved for something else than generating says so by its name; a folder of
sentence-transformers pools. --runner, --convert and --pooler-config decide otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.labels import labels
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.config.checkpoint.sentence_transformers import SentenceSettings, sentence_settings
from dovetail.config.config import Config
from dovetail.config.rules.architectures import (
    CLASSES,
    LOGITS,
    NOTHING,
    TOKEN_CLASSES,
    stem,
)
from dovetail.config.rules.selections import select
from dovetail.errors import ConfigError
from dovetail.interfaces.pooling_params import CLASSIFY, EMBED, TOKEN_CLASSIFY, TOKEN_EMBED
from dovetail.interfaces.spec import ModelSpec, PoolingSpec, Selection

POOLER_CONFIG = "--pooler-config"
_CONVERTED = {"embed": NOTHING, "classify": CLASSES, "reward": TOKEN_CLASSES}
_TASKS = {
    NOTHING: (EMBED, TOKEN_EMBED),
    CLASSES: (CLASSIFY, TOKEN_CLASSIFY),
    TOKEN_CLASSES: (TOKEN_CLASSIFY,),
}
_PER_TOKEN, _LAST_TOKEN = "per_token", "last_token"


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of --pooler-config; those that are not set are the checkpoint's."""

    pooling_type: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    softmax: bool | None = None
    activation: bool | str | None = None
    use_activation: bool | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a model is run for: its spec with the head that it gets, and how it pools (None: it
    generates). `max_tokens` is the longest prompt that its folder asks for."""

    model: ModelSpec
    pooling: PoolingSpec | None = None
    max_tokens: int | None = None


def purpose(config: Config, model: ModelSpec) -> Purpose:
    """Return what the model is run for. Raises: ConfigError where flags and checkpoint disagree"""
    sentences = sentence_settings(Path(model.path))
    head = _head(config, model, sentences)
    if head == LOGITS:
        if config.model.pooler_config:
            raise ConfigError(
                "the model generates and pools nothing.",
                where=POOLER_CONFIG,
                fix="leave it out, or add --runner pooling.",
            )
        return Purpose(model=model)
    facts = facts_of(model.hf_config)
    is_causal = not (facts.is_encoder or _sees_all(model.hf_config))
    model = msgspec.structs.replace(model, head=head, is_causal=is_causal)
    asked = _pooler_config(config)
    pooling = _pooling_spec(config, model, asked, sentences)
    return Purpose(
        model=model,
        pooling=pooling,
        max_tokens=sentences.max_tokens if sentences is not None else None,
    )


def _sees_all(facts: Mapping[str, Any]) -> bool:
    """Return whether a decoder's config says that every token sees all others."""
    return bool(facts.get("use_bidirectional_attention")) or facts.get("is_causal") is False


def _head(config: Config, model: ModelSpec, sentences: SentenceSettings | None) -> str:
    """Return what stands on the hidden states. Raises: ConfigError"""
    runner = registry.value_of("runner", config.model.runner)
    convert = registry.value_of("convert", config.model.convert)
    _, head = stem(model.architecture)
    if runner == "generate":
        if head not in (LOGITS, None):
            raise ConfigError(
                f"{model.architecture} does not generate.",
                where="--runner",
                fix="leave the flag out, or use a checkpoint that generates.",
            )
        return LOGITS
    if convert:
        return _CONVERTED[convert] if head in (LOGITS, None) else head or _CONVERTED[convert]
    if head not in (LOGITS, None):
        return head
    return NOTHING if runner == "pooling" or sentences is not None else LOGITS


def _pooler_config(config: Config) -> PoolerConfig:
    """Return --pooler-config. Raises: ConfigError naming the key"""
    given = dict(config.model.pooler_config)
    try:
        return msgspec.convert(given, PoolerConfig)
    except msgspec.ValidationError as error:
        known = ", ".join(PoolerConfig.__struct_fields__)
        raise ConfigError(f"{error}.", where=POOLER_CONFIG, fix=f"the keys are {known}.") from error


def _pooling_spec(
    config: Config, model: ModelSpec, asked: PoolerConfig, sentences: SentenceSettings | None
) -> PoolingSpec:
    tasks = _TASKS[model.head]
    whole, of_tokens = _poolers(config, model, asked, sentences)
    projections = sentences.projections if sentences is not None else ()
    size = projections[-1].out_size if projections else model.hidden_size
    facts = model.hf_config
    allowed = tuple(facts.get("matryoshka_dimensions") or ())
    normal = asked.normalize
    if normal is None:
        normal = sentences.is_normalized if sentences is not None else True
    return PoolingSpec(
        tasks=tasks,
        pooler=whole,
        token_pooler=of_tokens,
        projections=projections,
        activation=_activation(model, asked),
        size=size,
        is_normalized=normal,
        dimensions=asked.dimensions,
        is_matryoshka=bool(allowed) or bool(facts.get("is_matryoshka")),
        allowed_dimensions=allowed,
        step_token_id=asked.step_tag_id,
        returned_token_ids=asked.returned_token_ids,
        labels=labels(facts),
        prompts=dict(sentences.prompts) if sentences is not None else {},
        default_prompt=sentences.default_prompt if sentences is not None else "",
        prefix_tasks=_prefix_tasks(model, tasks, whole),
    )


def _poolers(
    config: Config, model: ModelSpec, asked: PoolerConfig, sentences: SentenceSettings | None
) -> tuple[Selection, Selection]:
    """Return what makes one vector of a prompt, and what makes one for each token."""
    facts = facts_of(model.hf_config)
    named = asked.pooling_type.lower() if asked.pooling_type else None
    usual = sentences.pooler if sentences is not None and sentences.pooler else facts.pooler
    if model.head != NOTHING and facts.classes_pooler:
        usual = _by_config(facts.classes_pooler, model.hf_config)
    usual_of_tokens = "all" if asked.step_tag_id is None else "step"
    if named is not None and _is_per_token(named):
        return _pooler(config, usual), _pooler(config, named)
    return _pooler(config, named or usual), _pooler(config, usual_of_tokens)


def _by_config(name: str, facts: Mapping[str, Any]) -> str:
    """Return a pooler's name, out of the field of config.json where it stands there."""
    where, _, field = name.partition(".")
    return str(facts[field]) if where == "config" else name


def _pooler(config: Config, name: str) -> Selection:
    return select("pooler", name, where=POOLER_CONFIG, options=config.plugin.options_of("pooler"))


def _is_per_token(name: str) -> bool:
    return _PER_TOKEN in registry.load("pooler", name, where=POOLER_CONFIG).capabilities


def _prefix_tasks(model: ModelSpec, tasks: tuple[str, ...], whole: Selection) -> tuple[str, ...]:
    """Return the tasks that need nothing of a prompt's prefix but its cache."""
    if not model.is_causal or _LAST_TOKEN not in registry.load_selection(whole).capabilities:
        return ()
    return tuple(task for task in tasks if task in (EMBED, CLASSIFY))


def _activation(model: ModelSpec, asked: PoolerConfig) -> str:
    """Return what makes probabilities of the numbers of classes."""
    if isinstance(asked.activation, str):
        return asked.activation
    wants = next(
        (one for one in (asked.use_activation, asked.activation, asked.softmax) if one is not None),
        True,
    )
    facts = model.hf_config
    kind = facts.get("problem_type")
    if not wants or kind == "regression":
        return "identity"
    is_single = len(labels(facts)) == 1
    return "sigmoid" if is_single or kind == "multi_label_classification" else "softmax"
