"""Facts of EXAONE 3 and 4: defaults for a config.json, as in the code of EXAONE 3's first
checkpoints. transformers saves EXAONE 3 under Llama's class."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

EXAONE = Value(
    summary="EXAONE 3 and 3.5",
    value=ModelFacts(
        runs_as="ExaoneForCausalLM",
        attribute_map={
            "num_hidden_layers": "num_layers",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        defaults={
            "vocab_size": 102400,
            "hidden_size": 2048,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "tie_word_embeddings": True,
        },
    ),
)

EXAONE4 = Value(
    summary="EXAONE 4",
    value=ModelFacts(
        defaults={
            "vocab_size": 102400,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
    ),
)
