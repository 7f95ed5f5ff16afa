"""Features that dovetail does not have: one row for each that people know from other servers.

A flag, plugin name, environment variable, path or body field that requests such a feature refers to
its row, so that all give the same message. To add a feature, delete its row; a test then lists
everything that referred to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A missing feature. `what` says so in lower case without a full stop, to follow a colon;
    `fix`, if any, says what to do instead, to follow a semicolon."""

    what: str
    fix: str = ""


_BY_PACKAGE = "install a package that offers a platform of this name, if there is one"
_STORES = (
    "use offloading, shared_storage or p2p, or install a package that offers a kv_connector of "
    "this name"
)

FEATURES: dict[str, Unsupported] = {
    # Models and requests to them.
    "media": Unsupported(
        "images, sound and video are not supported with this model",
        "serve one that takes them, or a GGUF file with its projector (--mmproj FILE)",
    ),
    "media_answers": Unsupported("answers are text; sound and images are not made"),
    "media_cache_reset": Unsupported("the cache of media cannot be emptied while the server runs"),
    "terratorch": Unsupported("models of pixels are not supported; terratorch is not used"),
    "s3": Unsupported("loading from S3 is not supported"),
    # Devices and parallelism.
    "hpu": Unsupported("Gaudi devices (HPU) are not supported", _BY_PACKAGE),
    "neuron": Unsupported("AWS Neuron devices are not supported", _BY_PACKAGE),
    "openvino": Unsupported("OpenVINO is not supported", _BY_PACKAGE),
    "rocm": Unsupported("ROCm is not supported", _BY_PACKAGE),
    "tpu": Unsupported("TPUs are not supported", _BY_PACKAGE),
    "xpu": Unsupported("Intel XPUs are not supported", _BY_PACKAGE),
    "ray_bundles": Unsupported(
        "dovetail makes a placement group of its own with a bundle for each rank",
        "--plugin-options.executor.strategy and .gpus say how",
    ),
    "elastic_engines": Unsupported(
        "the number of engines cannot be changed while a server runs", "start it again"
    ),
    "lmcache": Unsupported(
        "the connector to LMCache's server comes in its own package",
        "run `pip install 'dovetail-lmcache[library]'` and choose lmcache",
    ),
    "mooncake": Unsupported(
        "the connector to Mooncake's store comes in its own package",
        "run `pip install 'dovetail-mooncake[store]'` and choose mooncake; instead of Mooncake's "
        "transfer engine use p2p or nixl",
    ),
    "nixl": Unsupported(
        "the connector by NIXL comes in its own package",
        "run `pip install 'dovetail-nixl[library]'` and choose nixl, or use p2p, which goes by "
        "host memory and takes the same kv_transfer_params",
    ),
    "p2p_nccl": Unsupported("there is no connector from GPU to GPU by NCCL yet", _STORES),
    "all2all_libraries": Unsupported(
        "this way to exchange tokens between engines is not supported",
        "use allgather_reducescatter or all_to_all",
    ),
    # How steps are computed.
    "latent_libraries": Unsupported(
        "libraries of latent attention (FlashMLA, CUTLASS) are not used", "use auto or triton"
    ),
    "xformers": Unsupported("dovetail has its own kernels; use auto"),
    "kernel_choice": Unsupported(
        "the kernels that it selects are not supported",
        "--attention-backend and --quantization choose among those that are",
    ),
    "disabled_kernels": Unsupported(
        "kernels cannot be disabled by name", "DOVETAIL_CPU_ISA=none runs on torch"
    ),
    "flash_attn_version": Unsupported("the newest flash-attn that is installed is used"),
    "cuda_runtime": Unsupported("dovetail uses the CUDA runtime of torch"),
    "draft_model": Unsupported(
        "a draft model runs beside the model that it drafts for",
        "name it in --speculative-config, with the method draft_model",
    ),
    "request_processors": Unsupported(
        "a request cannot name code to run", "load processors at start with --logits-processors"
    ),
    "processor_threads": Unsupported("logits processors run one after another"),
    # Around the engine.
    "tokenizer_pool": Unsupported("the server tokenizes prompts itself"),
    "custom_tokenizer": Unsupported("name the class with --tokenizer-mode package.module:Class"),
    "thinking_in_content": Unsupported(
        "no parser leaves thinking in the content",
        "use minimax_m2, which separates it, or none, which leaves it in the text",
    ),
    "demo_tools": Unsupported("no tools come with the server; name servers of MCP by HOST:PORT"),
    "function_trace": Unsupported("function calls are not recorded"),
    "grammar_cache": Unsupported("compiled grammars are not cached on disk"),
    "fork": Unsupported("processes are always spawned, never forked"),
    # Request options.
    "other_samplers": Unsupported(
        "this way of sampling is not supported",
        "use temperature, top_p, top_k, min_p and the penalties",
    ),
    "web_search": Unsupported("there is no web search here"),
    "stored_prompts": Unsupported("prompts are not kept here", "send the text itself"),
}
"""Feature -> what is missing, and what to do instead."""


def what(feature: str) -> str:
    """Return the description of the missing feature, to follow a colon. Raises: KeyError for a
    feature without a row."""
    return FEATURES[feature].what


def sentence(feature: str) -> str:
    """Return the missing feature as a sentence. Raises: KeyError for a feature without a row."""
    return f"{what(feature)}."


def remedy(feature: str, first: str) -> str:
    """Return a fix: `first`, which drops the use of the feature, then the row's own advice."""
    fix = FEATURES[feature].fix
    return f"{first}; {fix}." if fix else f"{first}."
