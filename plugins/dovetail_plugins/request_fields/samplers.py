"""How tokens are drawn."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.request_field import RequestField, RequestFields, Sent
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANYONE,
    LLAMA,
    MISTRAL,
    OLLAMA,
    SGLANG,
    TGI,
    VLLM,
    WEBUI,
    absent,
    honoured,
    ignored,
    read_by,
    refused,
    renamed,
)

NEVER = -100.0
"""The bias of a token that is never drawn."""
LLAMA_ORDERS = (
    ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "dkypmxt",
    "edkypmxt",
    "edskypmxt",
)
"""The default orders of llama.cpp's samplers, as words and as letters, which its page sends. To
send one is to ask for nothing."""


def _biases(value: Any, sent: Sent) -> list[tuple[str, str, Any]]:
    """Read llama.cpp's list of pairs; false bans a token."""
    if not isinstance(value, list):
        raise ValueError("should be an object, or a list of pairs")
    pairs: dict[str, Any] = {}
    for number, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], float | bool):
            raise ValueError(f"entry {number} should be a pair of a token id and a bias")
        pairs[str(pair[0])] = NEVER if pair[1] is False else pair[1]
    return [("logit_bias", "logit_bias", pairs)]


def _is_sampled(value: Any, sent: Sent) -> list[tuple[str, str, Any]]:
    """Read whether tokens are drawn; without, the most likely one is taken."""
    if not isinstance(value, bool):
        raise ValueError("should be true or false")
    return [("temperature", "", 0.0)]


def _window(value: Any, sent: Sent) -> list[tuple[str, str, Any]]:
    """Read the window of the penalties: 0 tokens turn them off, others are not supported."""
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise ValueError("should be a number of tokens, or -1 for all")
    if value == 0:
        return [(name, "", _NO_PENALTY[name]) for name in _NO_PENALTY]
    return [("repeat_last_n", "repeat_last_n", value)]


_NO_PENALTY = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

ROWS: RequestFields = {
    **honoured(ANYONE, "the same", "temperature", "top_p", "top_k", "min_p", "seed"),
    **honoured(ANYONE, "the same", "presence_penalty", "frequency_penalty"),
    **honoured(VLLM, "the same", "repetition_penalty", "allowed_token_ids", "bad_words"),
    "logit_bias": read_by(
        _biases, LLAMA, "an object as in OpenAI's API, or llama.cpp's list of pairs", also=(list,)
    ),
    "repeat_penalty": renamed(LLAMA, "repetition_penalty", neutral=(1,)),
    "random_seed": renamed(MISTRAL, "seed"),
    "do_sample": read_by(
        _is_sampled, TGI, "false: `temperature` 0", neutral=(True,), is_switch=True
    ),
    **honoured(
        VLLM, "fields that logits processors claim; one that none claims is refused", "vllm_xargs"
    ),
    **honoured(
        LLAMA, "tokens this number of standard deviations below the best, at most", "top_n_sigma"
    ),
    **ignored(LLAMA, "belongs to a sampler that is refused", "dynatemp_exponent"),
    **ignored(LLAMA, "belongs to a sampler that is refused", "mirostat_tau", "mirostat_eta"),
    **ignored(LLAMA, "belongs to a sampler that is refused", "dry_base", "dry_allowed_length"),
    **ignored(LLAMA, "belongs to a sampler that is refused", "dry_penalty_last_n"),
    **ignored(LLAMA, "belongs to a sampler that is refused", "dry_sequence_breakers"),
    **ignored(LLAMA, "belongs to a sampler that is refused", "xtc_threshold", "adaptive_decay"),
    **ignored(WEBUI, "belongs to a sampler that is refused", "smoothing_curve"),
    "repeat_last_n": RequestField(
        how="ignored",
        what="penalties see the whole text; 0 turns them off",
        whose=LLAMA,
        read=_window,
        is_switch=True,
    ),
    **absent(LLAMA, "other_samplers", "typical_p", "typical", neutral=(1,)),
    **absent(LLAMA, "other_samplers", "dynatemp_range", "dry_multiplier", "mirostat"),
    **absent(LLAMA, "other_samplers", "xtc_probability", neutral=(0,)),
    **absent(LLAMA, "other_samplers", "tfs_z", "tfs", neutral=(1,)),
    **absent(LLAMA, "other_samplers", "adaptive_target", neutral=(-1,)),
    **absent(LLAMA, "other_samplers", "min_keep", neutral=(1,)),
    **absent(
        WEBUI,
        "other_samplers",
        *("diversity_penalty", "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"),
        *("mirostat_mode", "no_repeat_ngram_size", "penalty_alpha", "smoothing_factor"),
        *("temperature_last", "top_a"),
    ),
    **absent(WEBUI, "other_samplers", "cfg_scale", "guidance_scale", neutral=(1,)),
    **absent(WEBUI, "other_samplers", "encoder_repetition_penalty", neutral=(1,)),
    **absent(WEBUI, "other_samplers", "num_beam_groups", neutral=(1,)),
    **absent(TGI, "other_samplers", "watermark"),
    **absent(LLAMA, "sampler_order", "samplers", neutral=LLAMA_ORDERS),
    **absent(WEBUI, "sampler_order", "sampler_order"),
    **absent(SGLANG, "request_processors", "custom_logit_processor"),
    **refused(SGLANG, "use logits_processors, with the settings of each", "custom_params"),
    **refused(TGI, "use use_beam_search with n", "num_beams", neutral=(1,)),
    **refused(TGI, "use logit_bias or bad_words", "bad_words_ids"),
    **refused(WEBUI, "use logit_bias or bad_words", "custom_token_bans"),
    **refused(OLLAMA, "put its settings into the request itself", "options"),
}

SAMPLERS = Value(summary="how tokens are drawn", value=f"{__name__}:ROWS")
