"""Names that people know and dovetail does not have, with the reason. An error tells it.

A name here is no entry: it cannot be chosen. Building it means registering it and deleting its
line here; a test refuses names that stand in both.
"""

from __future__ import annotations

_HARDWARE = "there is no worker for this hardware"
_NOT_BUILT = "it is not supported yet"
_MEDIA = "media in prompts are not supported yet"
_LORA = "adapters are not supported yet"
_POOLING = "pooling models are not supported yet"
_MAMBA = "models with Mamba layers are not supported yet"

KNOWN: dict[str, dict[str, str]] = {
    "attention_backend": {
        "MLA": "models with latent attention are not supported yet",
        "XFORMERS": "dovetail has its own kernels; use auto",
    },
    "convert": dict.fromkeys(("classify", "embed", "reward"), _POOLING),
    "data_parallel_backend": dict.fromkeys(("mp", "ray"), "replicas are not supported yet"),
    "device": dict.fromkeys(("hpu", "neuron", "openvino", "rocm", "tpu", "xpu"), _HARDWARE),
    "drafter": {"draft_model": "a second model that guesses is not supported yet"},
    "executor": {
        "external_launcher": "several ranks are not supported yet",
        "mp": "several ranks are not supported yet; one runs in the engine process (uni)",
        "ray": "Ray is not used; one rank runs in the engine process (uni)",
    },
    "expert_placement": dict.fromkeys(
        ("linear", "round_robin"), "expert parallelism is not supported yet"
    ),
    "kv_cache_dtype": {"fp8_inc": _HARDWARE},
    "lora_dtype": dict.fromkeys(("auto", "bfloat16", "float16", "float32"), _LORA),
    "mamba_cache_dtype": dict.fromkeys(("auto", "float32"), _MAMBA),
    "mm_cache": dict.fromkeys(("lru", "shm"), _MEDIA),
    "mm_encoder_tp_mode": dict.fromkeys(("data", "weights"), _MEDIA),
    "modality": dict.fromkeys(("audio", "image", "video"), _MEDIA),
    "model_impl": {"terratorch": "models of pixels are not supported; terratorch is not used"},
    "pooling_type": {"mean": _POOLING},
    "runner": {
        "draft": "a model that only guesses for another is not supported yet",
        "pooling": _POOLING,
    },
    "spec_acceptance_method": {
        "typical_acceptance_sampler": "guesses are kept by rejection sampling, which leaves the "
        "distribution of answers unchanged"
    },
    "tokenizer": {
        "custom": "name the class with --tokenizer-mode package.module:Class",
    },
    "tokenizer_pool": {"ray": "the server tokenizes prompts itself"},
    "tool_server": {"demo": "no tools come with the server; name servers of MCP by HOST:PORT"},
}
"""Kind -> name -> reason, in small words that follow a colon."""


def reason_for(kind: str, name: str) -> str | None:
    """Return why a known name cannot be chosen, or None for a name that nobody knows."""
    return KNOWN.get(kind, {}).get(name)
