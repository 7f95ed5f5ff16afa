"""RecurrentGemma: which layers are recurrent, and what a row caches."""

from __future__ import annotations

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import MIXER, Config

SLIDING = "sliding_attention"
_USUAL = ("recurrent", "recurrent", "attention")


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: config.json's pattern, repeated."""
    pattern = config.get("block_types") or _USUAL
    count = int(config["num_hidden_layers"])
    return tuple(
        MIXER if pattern[i % len(pattern)] == "recurrent" else SLIDING for i in range(count)
    )


def width(config: Config) -> int:
    """Return the channels of a recurrent layer."""
    return int(config.get("lru_width") or config["hidden_size"])


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a number a channel and a convolution's inputs, or a window of keys
    and values."""
    kinds = layer_types(config)
    return CacheFacts(
        num_attention_layers=kinds.count(SLIDING),
        num_state_layers=kinds.count(MIXER),
        conv_numbers=width(config) * (int(config["conv1d_width"]) - 1),
        state_numbers=width(config),
    )


RECURRENT_GEMMA = Value(
    summary="RecurrentGemma",
    value=ModelFacts(
        defaults={
            "vocab_size": 256000,
            "hidden_size": 2560,
            "intermediate_size": 7680,
            "num_hidden_layers": 26,
            "num_attention_heads": 10,
            "attention_window_size": 2048,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "partial_rotary_factor": 0.5,
            "attention_bias": False,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        attribute_map={"sliding_window": "attention_window_size"},
        cache=f"{__name__}:cache",
    ),
)
