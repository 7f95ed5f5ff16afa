"""The purpose of a model: it generates, or it pools its prompts in some way.

A class for another purpose than generating has a name that says so; a sentence-transformers folder
pools. --runner, --convert and --pooler-config override that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.added_tokens import added_token
from dovetail.config.checkpoint.cross_encoder import stored_activation
from dovetail.config.checkpoint.labels import labels
from dovetail.config.checkpoint.late_interaction import vector_size
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.config.checkpoint.sentence_transformers import SentenceSettings, sentence_settings
from dovetail.config.config import Config
from dovetail.config.rules.model.architectures import PROCESS_REWARD, REWARD, stem
from dovetail.config.rules.model.class_tokens import with_class_tokens
from dovetail.config.rules.pooling.flags import check_pooled_flags
from dovetail.config.rules.pooling.pooler_config import (
    POOLER_CONFIG,
    PoolerConfig,
    pooler_config,
    verify_fits,
)
from dovetail.config.rules.selections import select
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    SPEAK,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
)
from dovetail.interfaces.data.spec import (
    CLASSES,
    LOGITS,
    MAKES_VECTORS,
    MIXED,
    NOTHING,
    SOUND,
    TOKEN_CLASSES,
    TOKEN_VECTORS,
    WORD_WEIGHTS,
    ModelSpec,
    PoolingSpec,
    Selection,
    WorkerDraftSpec,
)
from dovetail.registry.files import import_target

log = logging.getLogger(__name__)

_CONVERTED = {"embed": NOTHING, "classify": CLASSES, "reward": TOKEN_CLASSES}
_TASKS: dict[str, tuple[str, ...]] = {
    NOTHING: (EMBED, TOKEN_EMBED),
    TOKEN_VECTORS: (TOKEN_EMBED,),
    WORD_WEIGHTS: (EMBED,),
    MIXED: (EMBED, TOKEN_CLASSIFY, TOKEN_EMBED),
    CLASSES: (CLASSIFY, TOKEN_CLASSIFY),
    TOKEN_CLASSES: (TOKEN_CLASSIFY,),
    SOUND: (SPEAK,),
}
_SPARSE = {WORD_WEIGHTS: EMBED, MIXED: TOKEN_CLASSIFY}
_WITH_WHOLE: dict[tuple[str, ...], tuple[str, ...]] = {
    (TOKEN_CLASSIFY,): (CLASSIFY, TOKEN_CLASSIFY),
    (TOKEN_EMBED,): (EMBED, TOKEN_EMBED),
}
"""Tasks of per-token models if a pooler of whole prompts is chosen."""
_PER_TOKEN, _LAST_TOKEN, _IN_PIECES = "per_token", "last_token", "in_pieces"
_OTHER_NAMES = {"avg": "mean", "first": "cls"}
"""Words for poolers in config.json -> their names."""
_NUM_CLASSES = {PROCESS_REWARD: 2, REWARD: 1}
"""Suffix of a class name -> its number of classes, whatever config.json says."""
SPARSE = SentenceSettings(pooler="max", is_sparse=True)
"""How a model of words' weights pools whose folder does not say."""
STEP_END = "<extra_0>"
"""The token at the end of a step. Source: the model card of Qwen2.5-Math-PRM"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """The purpose of a model: its spec with the head to use, and how it pools (None: it generates).
    `max_tokens` is the prompt limit of its folder. `drafts` is its drafter."""

    model: ModelSpec
    pooling: PoolingSpec | None = None
    max_tokens: int | None = None
    drafts: WorkerDraftSpec | None = None


def purpose(config: Config, model: ModelSpec) -> Purpose:
    """Return the model's purpose. Raises: ConfigError if flags and checkpoint disagree"""
    sentences = sentence_settings(Path(model.path), model.hf_config)
    head = _head(config.model, model, sentences)
    if head == LOGITS:
        if config.model.pooler_config:
            log.warning(
                "%s has no effect: the model generates; --runner pooling pools", POOLER_CONFIG
            )
        return Purpose(model=_of_decoder(model))
    facts = facts_of(model.hf_config)
    is_causal = not (facts.is_encoder or _sees_all(model.hf_config))
    if model.encoder is not None:  # only its encoder is used, or not even that
        model = msgspec.structs.replace(model, encoder=None, cache=None)
    model = msgspec.structs.replace(model, head=head, is_causal=is_causal)
    check_pooled_flags(config, model)
    pooler = pooler_config(config.model)
    model = with_class_tokens(config.model, _with_labels(model), pooler)
    settings = sentences or (
        SPARSE if head == WORD_WEIGHTS else SentenceSettings(is_normalized=True)
    )
    pooling = _pooling_spec(config.model, config.plugin, model, pooler, settings)
    return Purpose(model=model, pooling=pooling, max_tokens=settings.max_tokens)


def _of_decoder(model: ModelSpec) -> ModelSpec:
    """Return a generating model with its decoder's number of layers, which may differ from its
    encoder's."""
    if model.encoder is None or model.cache is None:
        return model
    return msgspec.structs.replace(model, num_layers=model.cache.num_attention_layers)


def _with_labels(model: ModelSpec) -> ModelSpec:
    """Return the model with its class's number of classes, if config.json need not state it."""
    end = next((end for end in _NUM_CLASSES if model.architecture.endswith(end)), None)
    if end is None:
        return model
    facts = {key: value for key, value in model.hf_config.items() if key != "id2label"}
    facts["num_labels"] = _NUM_CLASSES[end]
    return msgspec.structs.replace(model, hf_config=facts)


def _sees_all(facts: Mapping[str, Any]) -> bool:
    """Return whether a decoder's config enables bidirectional attention."""
    both_ways = facts.get("use_bidirectional_attention")  # "vision": within images alone
    return both_ways in (True, "all") or facts.get("is_causal") is False


def _head(model_config: ModelConfig, model: ModelSpec, sentences: SentenceSettings | None) -> str:
    """Return the head on the hidden states. Raises: ConfigError"""
    runner = registry.admin.value_of("runner", model_config.runner)
    convert = registry.admin.value_of("convert", model_config.convert)
    _, head = stem(model.architecture)
    if runner == "generate":
        if head not in (LOGITS, None):
            raise ConfigError(
                f"{model.architecture} does not generate.",
                where="--runner",
                fix="leave the flag out, or use a checkpoint that generates.",
            )
        return LOGITS
    if facts_of(model.hf_config).speech and not convert:
        return SOUND
    if sentences is not None and sentences.is_sparse:
        return WORD_WEIGHTS
    if convert == "embed" and head in (CLASSES, TOKEN_CLASSES):
        return NOTHING
    if convert:
        return _CONVERTED[convert] if head in (LOGITS, None) else head or _CONVERTED[convert]
    if head not in (LOGITS, None):
        return head
    return NOTHING if runner == "pooling" or sentences is not None else LOGITS


def _pooling_spec(
    model_config: ModelConfig,
    plugins: PluginConfig,
    model: ModelSpec,
    pooler: PoolerConfig,
    sentences: SentenceSettings,
) -> PoolingSpec:
    facts = model.hf_config
    size = _size(model, sentences)
    names = labels(facts)
    if model.class_tokens:
        pooler = msgspec.structs.replace(pooler, returned_token_ids=())
    verify_fits(pooler, model, size=size, num_classes=len(names))
    step_token = _step_token(model, pooler)
    tasks, whole, of_tokens = _poolers(plugins, model, pooler, sentences, step_token)
    if pooler.enable_chunked_processing:
        _verify_pieces(whole)
    allowed = tuple(facts.get("matryoshka_dimensions") or ())
    return PoolingSpec(
        tasks=tasks,
        pooler=whole,
        token_pooler=of_tokens,
        projections=sentences.projections,
        activation=_activation(model_config, model, pooler),
        size=size,
        sparse_task=_SPARSE.get(model.head, ""),
        is_normalized=sentences.is_normalized if pooler.normalize is None else pooler.normalize,
        dimensions=pooler.dimensions,
        is_matryoshka=bool(allowed) or bool(facts.get("is_matryoshka")),
        allowed_dimensions=allowed,
        step_token_id=step_token,
        returned_token_ids=pooler.returned_token_ids,
        labels=names,
        prompts=dict(sentences.prompts or model.whole_config.get("prompts") or {}),
        default_prompt=sentences.default_prompt,
        prefix_tasks=_prefix_tasks(model, tasks, whole),
        includes_prompt=sentences.includes_prompt,
        lowers_case=sentences.lowers_case,
        splits_long=pooler.enable_chunked_processing,
        most_tokens=pooler.max_embed_len,
        speech=import_target(facts_of(facts).speech)(facts) if model.head == SOUND else None,
    )


def _size(model: ModelSpec, sentences: SentenceSettings) -> int:
    """Return the size of a vector."""
    if model.head == TOKEN_VECTORS:
        return vector_size(model.hf_config, Path(model.path))
    if model.head == WORD_WEIGHTS:
        return model.vocab_size
    field = facts_of(model.hf_config).output_size
    own = {**model.hf_config, **model.whole_config}.get(field) or model.hidden_size
    sizes = [layer.out_size for layer in sentences.projections if layer.out_size]
    return sizes[-1] if sizes else int(own)


def _poolers(
    plugins: PluginConfig,
    model: ModelSpec,
    pooler: PoolerConfig,
    sentences: SentenceSettings,
    step_token: int | None,
) -> tuple[tuple[str, ...], Selection, Selection]:
    """Return the tasks, the usual one first, the pooler for whole prompts, and the pooler for
    tokens."""
    tasks = _TASKS[model.head][: 1 if facts_of(model.whole_config).media_alone else None]
    facts = facts_of(model.hf_config)
    named = pooler.pooling_type or None
    named = named.lower() if named and ":" not in named else named  # paths stay unchanged
    usual = sentences.pooler or _by_config(facts.pooler, model.hf_config)
    if model.head not in MAKES_VECTORS and facts.classes_pooler:
        usual = _by_config(facts.classes_pooler, model.hf_config)
    of_tokens = "all" if step_token is None else "step"
    if named is None and not (sentences.has_modules and sentences.pooler is None):
        return tasks, _pooler(plugins, usual), _pooler(None, of_tokens)
    if named is None or _is_per_token(named):
        return tasks[::-1], _pooler(None, usual), _pooler(plugins, named or of_tokens)
    tasks = _WITH_WHOLE.get(tasks, tasks)
    return tasks, _pooler(plugins, named), _pooler(None, of_tokens)


def _by_config(name: str, facts: Mapping[str, Any]) -> str:
    """Return a pooler's name, read from a field of config.json if `name` refers to one."""
    where, _, field = name.partition(".")
    found = str(facts.get(field, "")) if where == "config" else name
    return _OTHER_NAMES.get(found, found)


def _pooler(plugins: PluginConfig | None, name: str) -> Selection:
    """Return a pooler, with the user's options if the user chose it (`config` given)."""
    options = plugins.options_of("pooler") if plugins is not None else {}
    return select("pooler", name, where=POOLER_CONFIG, options=options)


def _is_per_token(name: str) -> bool:
    return _PER_TOKEN in registry.load("pooler", name, where=POOLER_CONFIG).capabilities


def _verify_pieces(whole: Selection) -> None:
    """Raises: ConfigError for a pooler whose vectors of pieces cannot be averaged"""
    if _IN_PIECES not in registry.admin.load_selection(whole).capabilities:
        raise ConfigError(
            f"the vectors that the pooler {whole.name} makes of the pieces of a long prompt cannot "
            "be averaged.",
            where=f"{POOLER_CONFIG}.enable_chunked_processing",
            fix="leave it out, or use the pooling_type MEAN, CLS or LAST.",
        )


def _prefix_tasks(model: ModelSpec, tasks: tuple[str, ...], whole: Selection) -> tuple[str, ...]:
    """Return the tasks that need only the cache of a prompt's prefix."""
    if not model.is_causal or _LAST_TOKEN not in registry.admin.load_selection(whole).capabilities:
        return ()
    return tuple(task for task in tasks if task in (EMBED, CLASSIFY))


def _step_token(model: ModelSpec, pooler: PoolerConfig) -> int | None:
    """Return the token that ends a step for a process reward model."""
    if pooler.step_tag_id is not None or not model.architecture.endswith(PROCESS_REWARD):
        return pooler.step_tag_id
    return added_token(Path(model.path), STEP_END)


def _activation(model_config: ModelConfig, model: ModelSpec, pooler: PoolerConfig) -> str:
    """Return the function from class scores to probabilities. Raises: ConfigError"""
    if model.head in MAKES_VECTORS or pooler.activates is False:
        return "identity"
    if isinstance(pooler.activation, str):
        return pooler.activation
    facts = model.hf_config
    kind = facts.get("problem_type")
    is_single = len(labels(facts)) == 1
    usual = "sigmoid" if is_single or kind == "multi_label_classification" else "softmax"
    if pooler.activates:
        return usual
    if kind == "regression" or _is_reward(model_config, model):
        return "identity"
    return stored_activation(facts, Path(model.path)) or usual


def _is_reward(model_config: ModelConfig, model: ModelSpec) -> bool:
    """Return whether the class scores are rewards, which are not probabilities."""
    if model.architecture.endswith(PROCESS_REWARD):
        return False
    converted = registry.admin.value_of("convert", model_config.convert)
    return model.architecture.endswith(REWARD) or converted == "reward"
