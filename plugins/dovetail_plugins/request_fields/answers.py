"""How long an answer is, where it stops, how many there are, and what is shown of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.interfaces.data.request_field import RequestFields, Sent
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANTHROPIC,
    ANYONE,
    LLAMA,
    MISTRAL,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    SGLANG,
    TGI,
    VLLM,
    absent,
    honoured,
    ignored,
    read_by,
    refused,
    renamed,
)

Found = Iterator[tuple[str, str, Any]]
LENGTH = ("max_tokens", "max_output_tokens", "options.num_predict")
TO_THE_END = (-1, -2)
"""Lengths that leave the end to the context."""


def _probabilities(value: Any, sent: Sent) -> Found:
    """Read how many candidates are shown for each token."""
    if sent.has("top_logprobs"):
        yield "top_logprobs", "", value
        if sent.has("logprobs"):
            yield "logprobs", "n_probs", True
    else:
        yield "logprobs", "", value


def _stops(value: Any, sent: Sent) -> Found:
    yield "stop_sequences" if sent.has("stop_sequences") else "stop", "", value


def _truncation(value: Any, sent: Sent) -> Found:
    """Read a number of tokens; Ollama's switch has no meaning here."""
    if isinstance(value, bool):
        raise ValueError("use truncate_prompt_tokens, which is a number")
    yield "truncate_prompt_tokens", "", value


def _extra_body(value: Any, sent: Sent) -> Found:
    """Read fields that a program sent as they stand in its code; they belong into the body."""
    if not isinstance(value, dict):
        raise ValueError("should be an object")
    for name, inner in value.items():
        if sent.body.get(name) is None:
            yield name, f"extra_body.{name}" if sent.has(name) else name, inner


def _usage(value: Any, sent: Sent) -> Found:
    """Read OpenRouter's {"include": true}: a stream ends with the counts, others always have
    them."""
    if not isinstance(value, dict):
        raise ValueError("should be an object")
    if value.get("include") and sent.body.get("stream") and sent.has("stream_options"):
        yield "stream_options.include_usage", "usage.include", True


ROWS: RequestFields = {
    "extra_body": read_by(_extra_body, ANYONE, "its fields, as if they were in the body"),
    **honoured(ANYONE, "the same", "n", "stop", "max_tokens", "stream"),
    **honoured(VLLM, "the same", "ignore_eos", "stop_token_ids", "min_tokens", "request_id"),
    **honoured(VLLM, "the same", "skip_special_tokens", "spaces_between_special_tokens"),
    **honoured(VLLM, "the same", "include_stop_str_in_output", "return_token_ids"),
    **honoured(VLLM, "the same", "truncate_prompt_tokens", "cache_salt", "priority"),
    "n_predict": renamed(LLAMA, *LENGTH, neutral=TO_THE_END, is_switch=True),
    "num_predict": renamed(OLLAMA, *LENGTH, neutral=TO_THE_END, is_switch=True),
    **dict.fromkeys(
        ("max_new_tokens", "max_gen_len", "max_tokens_to_sample"), renamed(TGI, *LENGTH)
    ),
    "max_completion_tokens": renamed(OPENAI, *LENGTH),
    "max_output_tokens": renamed(OPENAI, *LENGTH),
    "max_tokens": renamed(OPENAI, *LENGTH[1:], what="the length of an answer"),
    "min_new_tokens": renamed(SGLANG, "min_tokens"),
    **dict.fromkeys(
        ("stop_sequence", "stop_sequences", "stop_strings", "stop_words"),
        read_by(_stops, TGI, "`stop`"),
    ),
    "no_stop_trim": renamed(SGLANG, "include_stop_str_in_output"),
    "n_cmpl": renamed(LLAMA, "n", neutral=(1,)),
    "rid": renamed(SGLANG, "request_id"),
    "return_tokens": renamed(LLAMA, "return_token_ids"),
    "n_probs": read_by(_probabilities, LLAMA, "`top_logprobs`, or `logprobs`", neutral=(0,)),
    "truncate": read_by(_truncation, TGI, "`truncate_prompt_tokens`"),
    "max_prompt_tokens": renamed(ANYONE, "truncate_prompt_tokens"),
    "usage": read_by(_usage, OPENROUTER, "`stream_options.include_usage`"),
    **refused(TGI, "it counts the prompt as well; use max_tokens or min_tokens", "max_length",
              "min_length"),
    **refused(LLAMA, "an answer has no time limit; use max_tokens", "t_max_predict_ms",
              neutral=(0,)),
    **refused(LLAMA, "indentation is not enforced; use a grammar", "n_indent", neutral=(0,)),
    **refused(LLAMA, "logprobs are those before sampling", "post_sampling_probs"),
    **refused(SGLANG, "hidden states are not shown", "return_hidden_states"),
    **refused(SGLANG, "send the conversation so far as messages", "session_params"),
    **refused(MISTRAL, "send the words as a system message", "safe_prompt"),
    **refused(ANYONE, "send the words as a system message", "system_prompt"),
    **refused(ANYONE, "send it as a message of the assistant, with continue_final_message",
              "response_prefix"),
    **refused(ANYONE, "an adapter is named as model; /v1/models lists those that are there",
              "lora_path", "lora_request", "adapter_id", "adapters"),
    **refused(LLAMA, "adapters cannot be mixed or scaled in a request; name one as model", "lora"),
    **refused(VLLM, "embeddings are sent to /v1/completions", "prompt_embeds"),
    **refused(OPENAI, "is no longer part of the API; use tools", "functions"),
    **refused(OPENAI, "is no longer part of the API; use tool_choice", "function_call"),
    **refused(OPENAI, "tools need a conversation (/v1/chat/completions)", "tools", "tool_choice"),
    **refused(ANTHROPIC, "servers of tools are offered by /v1/responses, with tools of type mcp",
              "mcp_servers"),
    **refused(ANYONE, "the prompt has another field in this API", "input", "instructions",
              "messages", "prompt", "system"),
    **absent(OPENAI, "media_answers", "modalities", neutral=(["text"],)),
    **absent(OPENAI, "media_answers", "audio"),
    **absent(ANYONE, "media", "image_data", "images"),
    **absent(OPENAI, "web_search", "web_search_options", is_switch=True),
    **ignored(LLAMA, "it is for speed: where a prompt is found again", "cache_prompt", "id_slot",
              "n_cache_reuse"),
    **ignored(LLAMA, "a context never shifts here", "n_keep", "n_discard"),
    **ignored(LLAMA, "the answer has the shape of this API", "response_fields"),
    **ignored(LLAMA, "/completion and chat show times and progress", "timings_per_token",
              "return_progress"),
    **ignored(LLAMA, "--sse-keep-alive-interval sets it", "sse_ping_interval"),
    **ignored(OLLAMA, "a server has its model loaded", "keep_alive"),
}  # fmt: skip

ANSWERS = Value(summary="how long an answer is, and what is shown of it", value=f"{__name__}:ROWS")
