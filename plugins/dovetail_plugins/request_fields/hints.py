"""Hints and labels, which change no answer."""

from __future__ import annotations

from dovetail.interfaces.data.request_field import RequestFields
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANTHROPIC,
    LLAMA,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    SGLANG,
    ignored,
)

ROWS: RequestFields = {
    **ignored(OPENAI, "a label of the client's", "metadata", "user", "safety_identifier"),
    **ignored(OPENAI, "prefixes are always cached", "prompt_cache_key", "prompt_cache_retention"),
    **ignored(ANTHROPIC, "prefixes are always cached", "cache_control"),
    **ignored(OPENAI, "every request is served alike; use priority", "service_tier"),
    **ignored(OPENAI, "only /v1/responses stores answers", "store"),
    **ignored(OPENAI, "for speed: chat drafts it, if the server drafts by prediction,"
              " ngram or suffix", "prediction"),
    **ignored(OPENAI, "arguments of tools are always checked", "strict"),
    **ignored(ANTHROPIC, "answers have no citations", "citations"),
    **ignored(OPENROUTER, "there is one provider", "provider", "route", "models"),
    **ignored(OPENROUTER, "prompts are not changed", "transforms", "plugins"),
    **ignored(OPENROUTER, "a label of the client's", "session_id", "trace"),
    **ignored(OLLAMA, "the context length is set when the server starts, with --max-model-len",
              "num_ctx"),
    **ignored(LLAMA, "it is for speed", "speculative.n_max", "speculative.n_min",
              "speculative.p_min"),
    **ignored(SGLANG, "it is for measurements", "log_metrics", "return_meta_info"),
}  # fmt: skip

HINTS = Value(summary="hints and labels, which change no answer", value=f"{__name__}:ROWS")
