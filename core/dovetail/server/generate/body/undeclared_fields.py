"""Known fields that a body does not declare, and the error for each.

Three tables: fields of missing features, fields that have another name here (or come from other
servers' APIs), and fields without effect. A field that would change the answer is refused, unless
its value is neutral: many clients send defaults explicitly. Source: the API references of OpenAI,
Anthropic, Mistral, llama.cpp, Ollama, SGLang, TGI and vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.unsupported import sentence

WITHOUT_EFFECT = frozenset(
    {
        "cache_control",
        "cache_prompt",
        "citations",
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "id_slot",
        "keep_alive",
        "metadata",
        "mirostat_eta",
        "mirostat_tau",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "repeat_last_n",
        "safety_identifier",
        "service_tier",
        "smoothing_curve",
        "store",
        "strict",
        "user",
        "verbosity",
        "xtc_threshold",
    }
)
"""Fields that are accepted everywhere, change nothing, and are reported without a warning. They
include hints such as `prediction` and `verbosity`, which affect speed or style only."""

UNSUPPORTED_FIELDS = {
    "modalities": "media_answers",
    "audio": "media_answers",
    "image_data": "media",
    "images": "media",
    "web_search_options": "web_search",
    "custom_logit_processor": "request_processors",
    **dict.fromkeys(
        (
            "cfg_scale",
            "diversity_penalty",
            "dry_multiplier",
            "dynatemp_range",
            "encoder_no_repeat_ngram_size",
            "encoder_repetition_penalty",
            "epsilon_cutoff",
            "eta_cutoff",
            "guidance_scale",
            "mirostat",
            "mirostat_mode",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "penalty_alpha",
            "smoothing_factor",
            "temperature_last",
            "tfs",
            "tfs_z",
            "top_a",
            "typical",
            "typical_p",
            "watermark",
            "xtc_probability",
        ),
        "other_samplers",
    ),
    **dict.fromkeys(("sampler_order", "samplers"), "sampler_order"),
}
"""Fields of missing features -> the feature's name in `dovetail.unsupported`."""

_THINKING = "use reasoning_effort, or chat_template_kwargs.enable_thinking"
_LENGTH = (
    "use the field for the length of an answer: max_tokens, in responses max_output_tokens, in "
    "Ollama's API options.num_predict"
)
_PROMPT = "the prompt has another field in this API"

MISPLACED_FIELDS = {
    "prompt_embeds": "embeddings are sent to /v1/completions",
    "lora": "adapters cannot be mixed or scaled in a request; name one as model",
    **dict.fromkeys(
        ("lora_path", "lora_request", "adapter_id", "adapters"),
        "an adapter is named as model; /v1/models lists those that are there",
    ),
    "functions": "is no longer part of the API; use tools",
    "function_call": "is no longer part of the API; use tool_choice",
    "thinking_token_budget": "a thinking budget needs a conversation (/v1/chat/completions)",
    "mcp_servers": "servers of tools are offered by /v1/responses, with tools of type mcp",
    "do_sample": "set temperature to 0 for the most likely tokens",
    "json_mode": "use response_format",
    "max_prompt_tokens": "use truncate_prompt_tokens",
    "num_beams": "use use_beam_search with n",
    "num_ctx": "the context length is set when the server starts, with --max-model-len",
    "options": "put its settings into the request itself, under their names here",
    "random_seed": "use seed",
    "repeat_penalty": "use repetition_penalty",
    "response_prefix": "send it as a message of the assistant, with continue_final_message",
    "safe_prompt": "send the words as a system message",
    "system_prompt": "send the words as a system message",
    "truncate": "use truncate_prompt_tokens",
    "vllm_xargs": "use logits_processors, with the settings of each",
    **dict.fromkeys(("bad_words_ids", "custom_token_bans"), "use logit_bias or bad_words"),
    **dict.fromkeys(
        (
            "max_completion_tokens",
            "max_gen_len",
            "max_length",
            "max_new_tokens",
            "max_output_tokens",
            "max_tokens",
            "max_tokens_to_sample",
            "n_predict",
            "num_predict",
        ),
        _LENGTH,
    ),
    **dict.fromkeys(("min_length", "min_new_tokens"), "use min_tokens"),
    **dict.fromkeys(("stop_sequence", "stop_sequences", "stop_strings", "stop_words"), "use stop"),
    **dict.fromkeys(
        ("enable_thinking", "think", "thinking", "reasoning", "thinking_budget"), _THINKING
    ),
    **dict.fromkeys(("input", "instructions", "messages", "prompt", "system"), _PROMPT),
    **dict.fromkeys(("tools", "tool_choice"), "tools need a conversation (/v1/chat/completions)"),
    **dict.fromkeys(
        (
            "response_format",
            "text",
            "output_config",
            "output_format",
            "format",
            "json_schema",
            "regex",
            "ebnf",
            "grammar",
            "structural_tag",
            "guided_json_object",
            "guided_structural_tag",
            "nvext",
        ),
        "the constraint of an answer is asked for in other words here: by response_format (chat "
        "and "
        "completions), text.format (responses), output_config.format (messages) or "
        "structured_outputs (all of them)",
    ),
}
"""Fields with another name here -> what to use. They are refused if a dialect does not declare
them."""

REFUSED = frozenset({*UNSUPPORTED_FIELDS, *MISPLACED_FIELDS})

_NOTHING: tuple[object, ...] = (None, False, [], {}, "none", "auto", "")
"""Neutral values of any field."""

_SWITCHES = frozenset({"do_sample", "enable_thinking", "think", "web_search_options"})
"""Fields for which false, or no options, is not neutral."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "do_sample": (True,),
    "modalities": (["text"],),
    **dict.fromkeys(
        (
            "cfg_scale",
            "encoder_repetition_penalty",
            "guidance_scale",
            "num_beam_groups",
            "num_beams",
            "repeat_penalty",
            "tfs",
            "tfs_z",
            "typical",
            "typical_p",
        ),
        (1,),
    ),
    "n_predict": (-1,),
    "num_predict": (-1, -2),
}
"""Field -> further neutral values."""


def fault_of(name: str, value: Any) -> str | None:
    """Return why an undeclared field cannot be honoured; None if it may be ignored."""
    asks_nothing = value is None or (value in _NOTHING and name not in _SWITCHES)
    if asks_nothing or _is_neutral(name, value):
        return None
    if name in UNSUPPORTED_FIELDS:
        return sentence(UNSUPPORTED_FIELDS[name])
    return f"{MISPLACED_FIELDS[name]}." if name in MISPLACED_FIELDS else None


def _is_neutral(name: str, value: Any) -> bool:
    """Return whether a value is one of the field's own neutral values; True is not 1."""
    is_switch = isinstance(value, bool)
    return any(
        value == one and is_switch == isinstance(one, bool) for one in _NEUTRAL.get(name, ())
    )
