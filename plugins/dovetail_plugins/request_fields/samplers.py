"""How tokens are drawn."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.request_field import RequestFields, Sent
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANYONE,
    KOBOLD,
    LLAMA,
    MISTRAL,
    OLLAMA,
    SGLANG,
    TGI,
    VLLM,
    WEBUI,
    absent,
    claimed,
    honoured,
    read_by,
    refused,
    renamed,
)

NEVER = -100.0
"""The bias of a token that is never drawn."""
DETAIL = "a setting of a sampler, or of the penalties"
SAMPLERS: RequestFields = {
    **claimed(LLAMA, "dry_multiplier", "xtc_probability", "dynatemp_range", "mirostat", "samplers"),
    **claimed(LLAMA, "typical_p", "tfs_z", "min_keep", neutral=(1,)),
    **claimed(LLAMA, "adaptive_target", "top_n_sigma", neutral=(-1,)),
    **claimed(WEBUI, "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "top_a"),
    **claimed(WEBUI, "mirostat_mode", "no_repeat_ngram_size", "sampler_priority"),
    **claimed(WEBUI, "temperature_last"),
    **claimed(WEBUI, "typical", "tfs", "encoder_repetition_penalty", neutral=(1,)),
    **claimed(WEBUI, "nsigma", neutral=(-1,)),
    **claimed(KOBOLD, "sampler_order"),
    **honoured(LLAMA, DETAIL, "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    **honoured(LLAMA, DETAIL, "dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent"),
    **honoured(LLAMA, DETAIL, "mirostat_tau", "mirostat_eta", "repeat_last_n", "adaptive_decay"),
    **honoured(WEBUI, DETAIL, "dry_range", "smoothing_curve", "repetition_penalty_range"),
    **honoured(KOBOLD, DETAIL, "rep_pen_range"),
}
"""Fields that logits processors of dovetail claim."""


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


ROWS: RequestFields = {
    **honoured(ANYONE, "the same", "temperature", "top_p", "top_k", "min_p", "seed"),
    **honoured(ANYONE, "the same", "presence_penalty", "frequency_penalty"),
    **honoured(VLLM, "the same", "repetition_penalty", "allowed_token_ids", "bad_words"),
    "logit_bias": read_by(
        _biases, LLAMA, "an object as in OpenAI's API, or llama.cpp's list of pairs", also=(list,)
    ),
    "repeat_penalty": renamed(LLAMA, "repetition_penalty", neutral=(1,)),
    "rep_pen": renamed(KOBOLD, "repetition_penalty", neutral=(1,)),
    "random_seed": renamed(MISTRAL, "seed"),
    "do_sample": read_by(
        _is_sampled, TGI, "false: `temperature` 0", neutral=(True,), is_switch=True
    ),
    **honoured(
        VLLM, "fields that logits processors claim; one that none claims is refused", "vllm_xargs"
    ),
    **SAMPLERS,
    **absent(
        WEBUI,
        "other_samplers",
        *("diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"),
    ),
    **refused(
        WEBUI,
        "use temperature with dynatemp_range",
        "dynamic_temperature",
        "dynatemp_low",
        "dynatemp_high",
    ),
    **absent(WEBUI, "other_samplers", "cfg_scale", "guidance_scale", neutral=(1,)),
    **absent(WEBUI, "other_samplers", "num_beam_groups", neutral=(1,)),
    **absent(TGI, "other_samplers", "watermark"),
    **absent(SGLANG, "request_processors", "custom_logit_processor"),
    **refused(SGLANG, "use logits_processors, with the settings of each", "custom_params"),
    **refused(TGI, "use use_beam_search with n", "num_beams", neutral=(1,)),
    **refused(TGI, "use logit_bias or bad_words", "bad_words_ids"),
    **refused(WEBUI, "use logit_bias or bad_words", "custom_token_bans"),
    **refused(OLLAMA, "put its settings into the request itself", "options"),
}

SAMPLING = Value(summary="how tokens are drawn", value=f"{__name__}:ROWS")
