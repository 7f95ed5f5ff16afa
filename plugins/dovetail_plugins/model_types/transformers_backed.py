"""Facts of the types that only transformers' code runs.

Source: the modelling files of transformers 5; a test compares.
"""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts, ModelFactsTable, Positions
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._other_names import OLDER_KINDS, other_names
from dovetail_plugins.model_types.bart import OF_DECODER

_OF_POSITIONS: dict[Positions, tuple[str, ...]] = {
    "learned": (
        *("bert-generation", "big_bird", "biogpt", "data2vec-text"),
        *("electra", "ernie", "megatron-bert", "openai-gpt"),
        *("prophetnet", "rembert", "roberta-prelayernorm", "roc_bert"),
        *("xlm-roberta-xl", "xmod"),
    ),
    "relative": ("cpmant", "xlnet"),
    "sinusoidal": ("ctrl",),
}


_ENCODERS = (
    *("albert", "big_bird", "convbert", "deberta", "electra", "ernie", "esm", "esmc", "eurobert"),
    *("flaubert", "fnet", "funnel", "layoutlm", "megatron-bert", "mobilebert", "mra"),
    *("nystromformer", "perceiver", "reformer", "rembert", "roc_bert", "roformer", "squeezebert"),
    *("tapas", "xlm", "yoso"),
)
"""Types whose tokens see all others of their text."""
_ENCODERS_LIKE_ROBERTA = (
    *("data2vec-text", "ibert", "longformer", "luke", "roberta-prelayernorm", "xlm-roberta-xl"),
    "xmod",
)
"""Such types whose positions begin after that of padding."""
_NOT_LEARNED: dict[str, Positions] = {
    "deberta": "relative",
    "esmc": "rotary",
    "eurobert": "rotary",
    "funnel": "relative",
    "roformer": "sinusoidal",
}
"""Types of encoders with other positions than learned ones."""
_UNSTATED: dict[str, dict[str, int]] = {
    "fnet": {"num_attention_heads": 1},
    "funnel": {"num_hidden_layers": 12},
}
"""What config.json never says of a type, and its code does not read."""
_DECODERS_OF_PAIRS = ("bigbird_pegasus", "blenderbot", "blenderbot-small", "mvp", "plbart", "trocr")
"""Encoder-decoder types of which only the decoder is served."""


def _encoders() -> dict[str, ModelFacts]:
    found = {
        name: ModelFacts(
            is_encoder=True,
            pooler="cls",
            positions=_NOT_LEARNED.get(name, "learned"),
            defaults=_UNSTATED.get(name, {}),
        )
        for name in _ENCODERS
    }
    later = ModelFacts(
        is_encoder=True,
        pooler="cls",
        positions="learned",
        counts_from="pad_token_id",
        defaults={"pad_token_id": 1},
    )
    return found | dict.fromkeys(_ENCODERS_LIKE_ROBERTA, later)


def _types() -> dict[str, ModelFacts]:
    types = {
        name: ModelFacts(positions=positions)
        for positions, names in _OF_POSITIONS.items()
        for name in names
    }
    decoder = ModelFacts(positions="learned", attribute_map=OF_DECODER)
    types |= dict.fromkeys(_DECODERS_OF_PAIRS, decoder)
    stored_inputs_first = dataclasses.replace(types["openai-gpt"], quantized_is_readable=False)
    return types | {"openai-gpt": stored_inputs_first} | _encoders()


TYPES = Value(
    summary="the types that only transformers' code runs",
    value=ModelFactsTable(
        types=_types(),
        other_names=other_names(),
        older_kinds=OLDER_KINDS,
        processors={
            "PixtralProcessor": "dovetail_plugins.media_processors.pixtral:PixtralProcessor",
            **{
                name: f"dovetail_plugins.media_processors.pages:{name}"
                for name in ("ColPaliProcessor", "ColQwen2Processor", "ColModernVBertProcessor")
            },
            "gguf_processor": "dovetail_plugins.gguf.projectors.processor:folder_of",
            "VoxtralProcessor": "dovetail_plugins.media_processors.voxtral:VoxtralProcessor",
        },
    ),
)
