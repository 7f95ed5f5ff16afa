"""Plugin names that people know and dovetail does not have, each with the missing feature.

A name here is not an entry: it cannot be chosen. A test rejects names that are both.
"""

from __future__ import annotations

from dovetail.unsupported import FEATURES, what

UNSUPPORTED_NAMES: dict[str, dict[str, str]] = {
    "all2all": dict.fromkeys(
        (
            *("deepep_high_throughput", "deepep_low_latency", "flashinfer_all2allv"),
            *("flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided", "naive", "pplx"),
        ),
        "all2all_libraries",
    ),
    "attention_backend": {
        **dict.fromkeys(("MLA", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE"), "latent_libraries"),
        **dict.fromkeys(("FLASH_ATTN_MLA", "FLASHINFER_MLA", "TOKENSPEED_MLA"), "latent_libraries"),
        **dict.fromkeys(
            ("ROCM_AITER_FA", "ROCM_AITER_MLA_SPARSE", "ROCM_AITER_UNIFIED_ATTN"), "rocm"
        ),
        "XFORMERS": "xformers",
    },
    "platform": {name: name for name in ("hpu", "neuron", "openvino", "rocm", "tpu", "xpu")},
    "kv_connector": {
        **dict.fromkeys(("lmcache", "LMCacheConnectorV1", "LMCacheMPConnector"), "lmcache"),
        **dict.fromkeys(("mooncake", "MooncakeConnector", "MooncakeStoreConnector"), "mooncake"),
        **dict.fromkeys(("nixl", "NixlConnector"), "nixl"),
        "P2pNcclConnector": "p2p_nccl",
    },
    "kv_cache_dtype": {"fp8_inc": "hpu"},
    "model_impl": {"terratorch": "terratorch"},
    "reasoning_parser": {"minimax_m2_append_think": "thinking_in_content"},
    "runner": {"draft": "draft_model"},
    "tokenizer": {"custom": "custom_tokenizer"},
    "tokenizer_pool": {"ray": "tokenizer_pool"},
    "tool_server": {"demo": "demo_tools"},
}
"""Kind -> name -> feature."""


def why_unsupported(kind: str, name: str) -> str | None:
    """Return why a known name cannot be chosen, or None for an unknown name."""
    feature = UNSUPPORTED_NAMES.get(kind, {}).get(name)
    return None if feature is None else what(feature)


def instead_of(kind: str, name: str) -> str:
    """Return what to do instead of choosing an unsupported name; "" for an unknown name."""
    feature = UNSUPPORTED_NAMES.get(kind, {}).get(name)
    return "" if feature is None else FEATURES[feature].fix
