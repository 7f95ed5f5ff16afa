"""ModelFacts: facts about a model type that are needed before its code is imported.

A model family declares them in an entry point of the kind `model_type`: its name is the
"model_type" of config.json and its value is a ModelFacts. The module that holds it imports no
torch, because configs are resolved without. A type that no plugin declares has rotary positions and
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

    `positions`: how a token's position is encoded; a learned table has a maximum. `defaults`:
    values that config.json may omit (checkpoints omit the defaults of their config class).
    `attribute_map`: a usual name of config.json -> this family's own name, for example
    {"num_hidden_layers": "n_blocks"}. `length_is_scaled`: max_position_embeddings is the length
    after RoPE scaling. `has_two_rotary_tables`: windowed layers rotate by another rule.
    `output_size`: the field with the size of the last hidden states, if that may differ.
    `stores_inputs_first`: suffixes of the names of matrices stored as [I, O];
    `quantized_is_readable`: quantized copies of such checkpoints can be loaded. `is_encoder`: every
    token attends to all others; such models do not generate. `pooler` makes one vector of a prompt
    if the checkpoint does not name one; `classes_pooler` (a name, or the config.json field that has
    it, as "config.classifier_pooling") makes the input of its classes. `counts_from`: the
    config.json field with the last row of the position table that is used for no token.
    `has_position_bias`: attention adds biases by relative position to its scores. `alibi_without`:
    without this config.json field, positions are ALiBi's instead of rotary. `has_sinks`: each
    head's softmax has one more learned logit. `window_has_two_sides`: the sliding window counts
    keys before and after a query. `cache` is the "module:function" that makes CacheFacts from
    config.json (empty: every layer caches keys and values). `media` are the kinds of media whose
    vectors its text part takes, if the type has one. With `media_see_all` the tokens of an image
    attend to each other in both directions (a name: within windows, if this field of the text part
    is "vision"), with `prompts_see_all` all tokens of a prompt that has one; such models compute
    prompts whole and cache no prefixes. With `media_alone` a prompt is a text or one medium.
    `positions_per_second` is per second of video, if config.json does not say (0: one per step in
    time). `encoder_input` is the input of an encoder-decoder's encoder, "text" or "audio" (empty:
    no encoder), and `encoder_rows` the field with its maximum number of rows (empty: the context
    length). `runs_as` is the architecture of the plugin that generates, if checkpoints of the type
    name a class that other types with other weight names share (empty: the architecture they name).
    `speech` is the "module:function" that makes a SpeechSpec from config.json (empty: the type does
    not speak).
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
    media_see_all: bool | str = False
    prompts_see_all: bool = False
    media_apart: bool = False
    media_alone: bool = False
    media_adapters: Mapping[str, str] = field(default_factory=dict)
    positions_per_second: float = 0.0
    encoder_input: str = ""
    encoder_rows: str = ""
    runs_as: str = ""
    speech: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFactsTable:
    """Facts of many types, which one model plugin runs under an architecture's own name.

    Types that have their own entry take precedence, so adding a family removes nothing here.
    `other_names` apply to any type: another name of a setting -> the type's own, which transformers
    also accepts. `older_kinds` maps old names of layer kinds (`layer_types`) to the present ones,
    for all types. `processors` replace media processors of transformers: the class name in a
    checkpoint's files -> "module:Class" with `is_wanted()`, whether it is needed here, and
    `from_pretrained(folder)`.
    """

    types: Mapping[str, ModelFacts]
    other_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    older_kinds: Mapping[str, str] = field(default_factory=dict)
    processors: Mapping[str, str] = field(default_factory=dict)
