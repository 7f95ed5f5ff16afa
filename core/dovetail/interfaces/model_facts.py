"""ModelFacts: what must be known of a model type before its code is imported.

A model family declares them beside its model: an entry point of the kind `model_type` whose name is
the "model_type" of config.json and whose value is a ModelFacts. The module that holds it imports no
torch, since configs are resolved without. A type that no plugin declares has rotary positions and
nothing unusual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Positions = Literal["rotary", "learned", "sinusoidal", "alibi", "relative", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of one model type.

    `positions`: how a token's position is encoded; a learned table has an end. `defaults`: what
    config.json may leave out (checkpoints omit what equals the default of their config class).
    `attribute_map`: a usual name of config.json -> this family's own name for it, for example
    {"num_hidden_layers": "n_blocks"}. `length_is_scaled`: max_position_embeddings is the length
    after RoPE scaling. `has_two_rotary_tables`: windowed layers rotate by another rule.
    `output_size`: the field with the size of the last hidden states, where it may be another.
    `stores_inputs_first`: ends of the names of matrices that are stored [I, O];
    `quantized_is_readable`: quantized copies of such checkpoints can be loaded. `is_encoder`: every
    token sees all others; such models do not generate. `pooler` is what makes one vector of a
    prompt where the checkpoint does not say, `classes_pooler` (a name, or the field of config.json
    that has it, as "config.classifier_pooling") what its classes are told of. `counts_from` is the
    field of config.json after whose number a table of positions begins: its rows up to that one
    are those of no token. `has_position_bias`: attention adds biases by relative position to its
    scores; `alibi_without`: a field of config.json without which positions are ALiBi's, not
    rotations. `has_sinks`: each head's softmax has one learned logit more. `window_has_two_sides`:
    the sliding window counts the keys before and after a query. `cache` is the
    "module:function" that makes CacheFacts of the settings in config.json (empty: every layer keeps
    keys and values). `media` are the kinds of media whose vectors a text part gets, of the
    type of a whole that has one; with `media_see_all` the tokens of one image see each other, also
    those behind them, and with `prompts_see_all` all of a prompt that has one: such models compute
    prompts whole and keep no prefixes. `positions_per_second` are those of a second of video where
    config.json does not say (0: a step in time is one). `encoder_input` is what the encoder reads
    beside a decoder that generates, "text" or "audio" (empty: there is none), and `encoder_rows`
    the field that has the most rows it makes of it (empty: as many as the context has tokens).
    `runs_as` is the architecture whose plugin generates, where checkpoints of the type name a class
    that others share, of other names of weights (empty: the one that they name).
    """

    positions: Positions = "rotary"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    attribute_map: Mapping[str, str] = field(default_factory=dict)
    overflows_in_float16: bool = False
    length_is_scaled: bool = False
    has_two_rotary_tables: bool = False
    output_size: str = ""
    stores_inputs_first: tuple[str, ...] = ()
    quantized_is_readable: bool = True
    is_encoder: bool = False
    pooler: str = "last"
    classes_pooler: str = ""
    counts_from: str = ""
    has_position_bias: bool = False
    has_sinks: bool = False
    alibi_without: str = ""
    window_has_two_sides: bool = False
    cache: str = ""
    media: tuple[str, ...] = ()
    media_see_all: bool = False
    prompts_see_all: bool = False
    media_apart: bool = False
    media_adapters: Mapping[str, str] = field(default_factory=dict)
    positions_per_second: float = 0.0
    encoder_input: str = ""
    encoder_rows: str = ""
    runs_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFactsTable:
    """Facts of many types: those that one model plugin runs under an architecture's own name.

    Consulted after the types that have their own entry, so adding a family removes nothing here.
    `other_names` are those of any type: another name of a setting -> the type's own, which
    transformers reads alike. `older_kinds` are older names of kinds of layers (`layer_types`) ->
    the present ones, of all types. `processors` are media processors that stand in for those of
    transformers: the name of the class in a checkpoint's files -> "module:Class" with
    `is_wanted()`, whether it is needed here, and `from_pretrained(folder)`.
    """

    types: Mapping[str, ModelFacts]
    other_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    older_kinds: Mapping[str, str] = field(default_factory=dict)
    processors: Mapping[str, str] = field(default_factory=dict)
